"""Any problem is solved by the method for what it offers, or refused with what to do instead."""

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, LmdError
from lmd.guarantees import minimiser, minimum, optimum
from lmd.operators import Differences, Matrix
from lmd.problems import Composite, LassoFamily, LeastSquaresFamily, TVDenoising
from lmd.terms import L1, Squares


def test_a_closed_form_is_taken_where_there_is_one():
    problem, _ = LeastSquaresFamily(dtype=torch.float32).sample(3, torch.Generator().manual_seed(0))
    found = optimum(problem)
    assert found.x.dtype == torch.float64 and bool((found.gap == 0).all())
    assert_close(minimiser(problem), problem.minimiser())
    assert minimum(problem).dtype == torch.float32


def test_a_composite_of_parts_has_the_optimum_of_the_model_of_that_name():
    y = torch.rand(2, 1, 6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = Composite(Squares(y), (L1(0.2), Differences((6, 7))), start=y)
    found, named = (
        optimum(parts),
        optimum(TVDenoising(y, 0.2)),
    )
    assert bool((found.gap <= 1e-6 * found.value.abs()).all())
    assert_close(found.value, named.value, rtol=1e-6, atol=0)


def test_giving_up_is_said(limit_evaluations):
    limit_evaluations(1)
    problem, _ = LassoFamily(20, 30).sample(1, torch.Generator().manual_seed(0))
    same = Composite(L1(float(problem.weight)), (Squares(problem.b), Matrix(problem.A)), start=problem.start())
    for given in (problem, same):
        with pytest.raises(LmdError, match=r"^\w+: no certified minimiser, the relative duality gap stays at \d"):
            minimiser(given)


def test_what_no_method_is_for_is_said():
    unknown = lmd.problems.base.as_problem(lambda x: x.square().sum(dim=1))
    with pytest.raises(CapabilityError, match=r"^problem: got FunctionProblem, which no reference method is for"):
        optimum(unknown)
    for ask in (unknown.minimum, unknown.minimiser):
        with pytest.raises(CapabilityError, match=r"no minimiser in closed form, expected lmd\.guarantees\.minimiser"):
            ask()
