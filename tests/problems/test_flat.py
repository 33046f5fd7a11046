"""Points drawn flat: regions against those of SciPy, and what they prove against the compiled loop and the truth."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

import lmd
from lmd import kernels
from lmd.kernels import loop
from lmd.problems import TVDenoising
from lmd.problems.duality import relative_gap
from lmd.problems.flat import drawn_flat
from lmd.reproduction.datasets.images import image_data


def means_of(x: torch.Tensor, without_edge: torch.Tensor) -> torch.Tensor:
    """The same, by SciPy's connected components."""
    places, ends = np.arange(x.numel()).reshape(x.shape), []
    for axis in range(2, x.ndim):
        together = without_edge[:, :, axis - 2].narrow(axis, 0, x.shape[axis] - 1).numpy()
        ends.append([np.take(places, range(b, b + x.shape[axis] - 1), axis=axis)[together] for b in (0, 1)])
    one, other = (np.concatenate([pair[side] for pair in ends]) for side in (0, 1))
    graph = coo_matrix((np.ones(len(one)), (one, other)), shape=(x.numel(), x.numel()))
    count, labels = connected_components(graph, directed=False)
    sums = np.bincount(labels, x.double().numpy().ravel(), count) / np.bincount(labels, minlength=count)
    return torch.tensor(sums[labels].reshape(x.shape))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(1, 2), st.floats(0, 1), st.integers(0, 2**31 - 1)
)
def test_regions_are_connected_components(size, batch, share, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(batch, 2, *size, generator=generator, dtype=torch.float64)
    without_edge = torch.rand(batch, 2, len(size), *size, generator=generator) < share
    flat = drawn_flat(x, without_edge, torch.full_like(x, 2.0), 1.0)  # more slack than any variance
    torch.testing.assert_close(flat, means_of(x, without_edge), rtol=1e-12, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 9), st.floats(0.1, 0.9), st.floats(0, 0.4), st.integers(0, 2**31 - 1))
def test_each_region_is_drawn_flat_where_that_lowers_what_it_has_of_the_gap(height, width, share, room, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 1, height, width, generator=generator, dtype=torch.float64)
    without_edge = torch.rand(1, 1, 2, height, width, generator=generator) < share
    slack = room * torch.rand(x.shape, generator=generator, dtype=torch.float64)
    flat, means = drawn_flat(x, without_edge, slack, 0.7), means_of(x, without_edge)
    added, taken = means_of(0.7 * (x - means).square(), without_edge), means_of(slack, without_edge)
    clear = (added - taken).abs() > 1e-12
    expected = torch.where(added <= taken, means, x)
    torch.testing.assert_close(flat[clear], expected[clear], rtol=1e-12, atol=1e-12)


def test_a_long_way_around_is_one_region():
    """A spiral: labels have to go all along it."""
    without_edge = torch.zeros(1, 1, 2, 9, 9, dtype=torch.bool)
    without_edge[0, 0, 1, ::2, :8] = True
    for row in range(8):
        without_edge[0, 0, 0, row, 8 if row % 4 < 2 else 0] = True
    x = torch.arange(81.0).reshape(1, 1, 9, 9)
    flat = drawn_flat(x, without_edge, torch.full_like(x, 1e4), 1.0)
    rows = flat[0, 0, ::2].flatten()
    assert torch.equal(rows, rows[:1].expand_as(rows))


def noisy(isotropic, dtype=torch.float32, shape=(1, 2, 45, 70), weight=0.2):
    generator = torch.Generator().manual_seed(0)
    steps = torch.rand(*shape[:2], 5, 5, generator=generator)
    clean = torch.nn.functional.interpolate(steps, size=shape[2:], mode="nearest")
    y = clean + 0.1 * torch.randn(shape, generator=generator)
    return TVDenoising(y.to(dtype), weight, isotropic)


@pytest.mark.parametrize("isotropic", [False, True])
def test_what_is_left_of_the_gap_is_a_fraction(isotropic):
    problem = noisy(isotropic, torch.float64)
    result = lmd.run(lmd.solvers.FGP(restart=True), problem, iterations=250)
    plain = float(relative_gap(*problem.certified_gap(result.x, result.dual)))
    flat = float(relative_gap(*problem.certified_gap(problem.flattened(result.dual), result.dual)))
    assert plain < 1e-3 and 3 * flat < plain
    minimum = lmd.solve(problem, 1e-9).certificate.lower_bound
    assert bool((problem.value(problem.flattened(result.dual)) >= minimum).all())


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_compiled_loop_draws_the_same_whatever_the_threads(isotropic, dtype, monkeypatch):
    problem, answers = noisy(isotropic, dtype, (1, 3, 133, 90)), []
    monkeypatch.setattr(kernels, "SMALL", 0)
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        answers.append(lmd.solve(problem, 2e-5))
    for result in answers:
        assert result.status[0].name == "TOLERANCE_REACHED"
        assert torch.equal(result.x, answers[0].x) and torch.equal(result.dual, answers[0].dual)
    flat = problem.flattened(answers[0].dual)
    assert float((flat - problem.primal_from_dual(answers[0].dual)).abs().max()) > 1e-5  # it is not the same anyway
    torch.testing.assert_close(
        answers[0].x, flat, rtol=0, atol=16 * torch.finfo(dtype).eps
    )  # means, added up in another order


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1e5, -1e7])
def test_regions_are_the_same_far_from_zero(offset, isotropic):
    """What a region has of the gap is the same; squares of numbers that are far from 0 would hide it."""
    problem = noisy(isotropic, torch.float64)
    dual = lmd.run(lmd.solvers.FGP(restart=True), problem, iterations=250).dual
    far = TVDenoising(problem.noisy + offset, problem.weight, isotropic)
    expected = problem.flattened(dual)
    torch.testing.assert_close(far.flattened(dual) - offset, expected, rtol=0, atol=1e-14 * abs(offset) + 1e-14)
    if kernels.library() is not None:  # tolerances that offsets leave room for, in the rounding of x
        counts = [int(lmd.solve(each, 1e-5).iterations) for each in (problem, far)]
        assert counts[0] == counts[1]


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
def test_what_is_near_enough_after_many_iterations_is_drawn_flat_in_the_end():
    """A smooth photograph at a weight that takes many iterations: x(p) itself is proven before it is drawn flat."""
    clean = image_data("photographs").test_images[:1].float() / 255
    problem = TVDenoising(clean + 0.02 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)), 0.3)
    result = lmd.solve(problem, 2e-4)
    flat = problem.flattened(result.dual)
    value, gap = problem.certified_gap(problem.primal_from_dual(result.dual), result.dual)
    assert int(result.iterations) >= 130 and bool(gap <= 2e-4 * (value - gap))
    torch.testing.assert_close(result.x, flat, rtol=0, atol=16 * torch.finfo(torch.float32).eps)
    assert bool(result.certificate.bound < 0.5 * gap)


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
@pytest.mark.parametrize("isotropic", [False, True])
def test_single_precision_proves_a_millionth(isotropic):
    problem = noisy(isotropic)
    result = lmd.solve(problem, 1e-6)
    assert result.status[0].name == "TOLERANCE_REACHED" and result.x.dtype == torch.float32
    exact = TVDenoising(problem.noisy.double(), 0.2, isotropic)
    value, gap = exact.certified_gap(result.x.double(), result.dual.double())
    assert bool(gap <= 1.001e-6 * value)


@pytest.mark.parametrize("isotropic", [False, True])
def test_without_compiled_code_it_is_drawn_too(isotropic, monkeypatch):
    problem = noisy(isotropic, torch.float64)
    compiled = lmd.solve(problem, 1e-5)
    monkeypatch.setattr(loop, "serves", lambda *tensors: False)
    result = lmd.solve(problem, 1e-5, solver=lmd.solvers.FGP(restart=True))
    assert result.status[0].name == "TOLERANCE_REACHED"
    torch.testing.assert_close(result.x, problem.flattened(result.dual), rtol=0, atol=1e-12)
    bound = float((compiled.certificate.bound.max() + result.certificate.bound.max()).sqrt())
    assert float((result.x - compiled.x).norm()) <= 2 * bound
