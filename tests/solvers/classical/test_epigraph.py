import math

import pytest
import torch

import lmd
from lmd.operators import Identity
from lmd.operators.matrix import Matrix
from lmd.problems import Composite
from lmd.solvers.classical.qp_interior_point import QPInteriorPoint
from lmd.terms import L1, Absolute, Box, Hinge, Simplex, Squares, Zero
from lmd.terms.base import filled

Z = torch.tensor([[0.3, -1.2, 2.5], [0.0, 0.9, -0.4]], dtype=torch.float64)
Y = torch.tensor([[0.1, 0.2, -0.5], [1.0, 0.0, 0.7]], dtype=torch.float64)


@pytest.mark.parametrize(
    "term",
    [
        L1(2.0),
        L1(torch.tensor([0.5, 3.0]).double()),
        Absolute(Y, 0.7),
        Hinge(1.5),
        Squares(Y, 0.3),
        Squares(Y, 2.0, Y.abs()),
        Zero(),
    ],
    ids=lambda term: type(term).__name__,
)
def test_pieces_sum_to_the_value_up_to_a_number(term):
    found = term.pieces(Z)
    c, s, w, k = (filled(each, Z) for each in (found.curvature, found.slope, found.fold, found.kink))
    total = lambda z: (c * z.square() / 2 + s * z + w * (k - z).clamp(min=0)).expand_as(z).sum(dim=1)  # noqa: E731
    torch.testing.assert_close(total(Z) - total(Y), term.value(Z) - term.value(Y))


def problems(unit, dtype):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(12, 5, dtype=torch.float64, generator=generator)
    b, y = (unit * torch.randn(3, n, dtype=torch.float64, generator=generator) for n in (12, 5))
    A, b, y = (each.to(dtype) for each in (A, b, y))
    zeros, K, even = torch.zeros_like(y), Matrix(A), torch.full_like(y, 0.2)
    fit, ridge = (Squares(b, 0.5), K), (Squares(zeros, 0.5), Identity())
    return {
        "elastic net": Composite(L1(2 * unit), fit, ridge, start=zeros),
        "least absolute deviations": Composite(Zero(), (Absolute(b, unit), K), ridge, start=zeros),
        "no squares": Composite(L1(0.3), (Absolute(b), K), start=zeros),
        "non-negative": Composite(Box(0.0, math.inf), fit, start=zeros),
        "hinge": Composite(L1(0.1), (Hinge(0.7), K), start=zeros),
        "simplex and box": Composite(Squares(y), (Simplex(), Identity()), (Box(0.0, 0.9), Identity()), start=even),
        "bounds behind a matrix": Composite(L1(unit), (Squares(y), Identity()), (Box(-unit, unit), K), start=zeros),
        "a matrix for each": Composite(L1(unit), (Squares(b), Matrix(A * A.new_ones(3, 1, 1))), start=zeros),
        "nothing but squares": Composite(Zero(), fit, ridge, start=zeros),
        "scales": Composite(L1(unit), fit, ridge, start=zeros, scales=(2.0, 0.5)),
    }


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("name", list(problems(1.0, torch.float64)))
def test_small_composites_of_pieces_are_proven_in_few_iterations(name, unit):
    problem = problems(unit, torch.float64)[name]
    result = lmd.solve(problem, 1e-8)
    assert isinstance(result.solver, QPInteriorPoint)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"} and int(result.iterations.max()) <= 60


def test_x_may_have_any_shape():
    y = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0))
    for behind in ([(L1(0.4), Identity())], [(L1(0.4), Identity()), (Box(-0.5, 0.5), Identity())]):
        result = lmd.solve(Composite(Squares(y, 0.5), *behind, start=torch.zeros_like(y)), 1e-6)
        assert isinstance(result.solver, QPInteriorPoint)
        nearest = torch.nn.functional.softshrink(y, 0.4)
        torch.testing.assert_close(
            result.x, nearest if len(behind) == 1 else nearest.clamp(-0.5, 0.5), atol=1e-3, rtol=0
        )


def test_a_warm_start_and_float32_are_proven_as_well():
    for problem in problems(1.0, torch.float32).values():
        result = lmd.solve(problem, 1e-4)
        again = lmd.solve(problem, 1e-4, warm=result)
        assert {status.name for status in (*result.status, *again.status)} == {"TOLERANCE_REACHED"}
