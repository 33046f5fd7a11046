"""`run` with a tolerance: each instance stops when its duality gap proves it good enough."""

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.problems import LeastSquares, TVDenoising, TVInpainting
from lmd.solvers import FGP, PDHG, GradientDescent, Status


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMD_CACHE", str(tmp_path))


def problem(kind="denoising", dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    edges = torch.linspace(0, 1, 12).round().expand(3, 1, 12, 12)
    noisy = (edges + 0.1 * torch.randn(3, 1, 12, 12, generator=generator)).to(dtype)
    weight = torch.tensor([0.05, 0.3, 1.0], dtype=dtype)
    if kind == "denoising":
        return TVDenoising(noisy, weight)
    return TVInpainting(noisy, torch.rand(3, 1, 12, 12, generator=generator) < 0.8, weight)


@pytest.mark.parametrize("kind", ["denoising", "inpainting"])
def test_every_answer_is_certified_and_the_easy_instances_stop_first(kind):
    tv = problem(kind)
    result = lmd.run(PDHG(), tv, tolerance=1e-3)
    assert result.status == (Status.TOLERANCE_REACHED,) * 3
    gaps = result.history.diagnostics["relative_gap"]
    assert len(set(result.iterations.tolist())) > 1
    for i, k in enumerate(result.iterations.tolist()):
        assert float(gaps[k, i]) <= 1e-3
        earlier = gaps[:k, i][~gaps[:k, i].isnan()]
        assert len(earlier) > 5 and bool((earlier > 1e-3).all())
        assert bool(gaps[k + 1 :, i].isnan().all())
    assert bool((result.values <= lmd.guarantees.minimum(problem(kind, torch.float64)) * (1 + 1e-3)).all())


def test_an_instance_stops_where_it_would_stop_alone():
    tv = problem()
    together = lmd.run(FGP(), tv, tolerance=1e-3)
    for i in range(3):
        alone = lmd.run(FGP(), tv.select(i), tolerance=1e-3)
        assert int(alone.iterations) == int(together.iterations[i])
        assert_close(alone.x[0], together.x[i], rtol=1e-5, atol=1e-6)


def test_looks_are_never_more_than_a_tenth_of_the_iterations_late():
    tv = problem()
    result = lmd.run(PDHG(), tv, tolerance=1e-4)
    looks = (~result.history.diagnostics["relative_gap"].isnan()).any(dim=1).nonzero().flatten().tolist()
    assert looks[0] == 1 and len(looks) < len(result.history) / 2
    assert all(after <= 1.1 * before + 1 for before, after in pairwise(looks))


def test_iterations_limit_it_and_the_last_iterate_is_looked_at():
    result = lmd.run(PDHG(), problem(), iterations=13, tolerance=1e-6)
    assert result.status == (Status.FINISHED,) * 3
    assert bool(torch.isfinite(result.history.diagnostics["relative_gap"][13]).all())


def test_without_x0_the_run_starts_where_the_problem_says():
    tv = problem()
    assert_close(lmd.run(PDHG(), tv, iterations=3).x, lmd.run(PDHG(), tv, tv.noisy, 3).x, rtol=0, atol=0)
    with pytest.raises(CapabilityError, match=r"LeastSquares, which has no start.*run without x0 needs"):
        lmd.run(GradientDescent(), LeastSquares(torch.eye(2), torch.ones(1, 2)))


def test_what_cannot_give_a_gap_says_so():
    with pytest.raises(CapabilityError, match=r"^solver: got GradientDescent, which keeps no dual point, expected one"):
        lmd.run(GradientDescent(), problem(), tolerance=1e-3)
    with pytest.raises(
        CapabilityError, match=r"^problem: got LeastSquares, which has no certified_gap.*tolerance needs"
    ):
        lmd.run(GradientDescent(), LeastSquares(torch.eye(2), torch.ones(1, 2)), torch.ones(1, 2), tolerance=1e-3)
    with pytest.raises(InputError, match=r"^tolerance: got 0"):
        lmd.run(PDHG(), problem(), tolerance=0)


@pytest.mark.parametrize("solver", [FGP(restart=True), PDHG(settle=8)], ids=lambda solver: type(solver).__name__)
def test_a_tolerance_that_float32_cannot_prove_ends_with_what_it_can(solver):
    tv = problem()
    result = lmd.run(solver, tv, tolerance=1e-12)
    assert set(result.status) == {Status.STALLED} and int(result.iterations.max()) < 20_000
    gaps = result.history.diagnostics["relative_gap"]
    smallest = gaps.nan_to_num(nan=torch.inf).amin(dim=0)
    assert bool((smallest < 1e-5).all()) and bool((smallest > 1e-12).all())
    bound = result.certificate.bound / result.certificate.value
    assert_close(bound, smallest.double(), rtol=0.05, atol=1e-8)  # the answer is the point of the smallest gap
    assert "use float64" in result.summary() and "proven: within" in result.summary()
    exact = lmd.run(solver, problem(dtype=torch.float64), tolerance=1e-10)
    assert exact.status == (Status.TOLERANCE_REACHED,) * 3


def test_slow_progress_is_not_a_stall():
    """Plain PDHG with a far too small primal step creeps, and gets there all the same."""
    result = lmd.run(PDHG(tau=0.0004, accelerated=False), problem(), tolerance=1e-3)
    assert result.status == (Status.TOLERANCE_REACHED,) * 3 and int(result.iterations.max()) > 2000


def test_what_a_run_proves_its_certificate_proves():
    for dtype in (torch.float32, torch.float64):
        for kind in ("denoising", "inpainting"):
            for tolerance in (1e-2, 1e-4):
                result = lmd.run(PDHG(settle=8), problem(kind, dtype), tolerance=tolerance)
                assert bool((result.certificate.bound <= tolerance * result.certificate.lower_bound * (1 + 1e-9)).all())


def test_gaps_are_relative_to_the_reported_values_where_rounding_raised_these(monkeypatch):
    """A bound that is proven about smaller values than the run reports grows by the difference."""
    tv, raised = problem(dtype=torch.float64), 0.5
    exact = type(tv).certified_gap
    monkeypatch.setattr(type(tv), "certified_gap", lambda *args: (exact(*args)[0] - raised, exact(*args)[1]))
    result = lmd.run(PDHG(), tv, iterations=1, tolerance=1e-6)
    values, gaps = exact(tv, result.x, result.dual)
    assert_close(values, result.values, rtol=1e-12, atol=0)
    found = result.history.diagnostics["relative_gap"][1]
    assert_close(found, (gaps + raised) / (values - gaps - raised), rtol=1e-9, atol=0)
