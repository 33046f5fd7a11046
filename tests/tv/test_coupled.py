"""Compiled solves of denoising with coupled channels against PyTorch's lines and against the uncoupled form."""

import pytest
import torch

import lmd
from lmd import kernels
from lmd.problems import TVDenoising, TVModel
from lmd.solvers import LearnedFGP
from lmd.solvers.learned.primal_dual import PLACES
from lmd.terms import Squares
from lmd.tv import match
from lmd.tv.plans import Denoising
from lmd.tv.schedules import Schedule, table_of

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")

FORMS = [False, True]
DTYPES = [torch.float32, torch.float64]


def images(shape, dtype=torch.float32, seed=0):
    """Noise on a step, which all channels have in one place."""
    noise = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    step = (torch.arange(shape[-1]) >= shape[-1] // 2).double()
    return (noise + step * torch.linspace(0.5, 1.5, shape[1], dtype=torch.float64).reshape(-1, 1, 1)).to(dtype)


def coupled(y, weight=0.3, isotropic=False):
    return TVModel(Squares(y), weight, isotropic=isotropic, coupled=True)


def is_proven(problem, result, tolerance):
    """Whether the relative gap of an answer, in float64, is within the tolerance; no value is below 0."""
    exact = problem.double()
    value, gap = exact.certified_gap(result.x.double(), exact.g.project(result.dual.double()))
    return bool(((gap <= tolerance * (value - gap)) | (value == 0)).all())


@pytest.mark.parametrize("isotropic", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape", [(1, 2, 1, 1), (2, 3, 1, 7), (1, 4, 7, 1), (2, 3, 5, 9), (1, 8, 33, 17), (1, 3, 6, 1501)]
)
def test_iterations_are_those_of_pytorch(shape, dtype, isotropic):
    weight = torch.linspace(0.1, 0.4, shape[0], dtype=dtype)
    problem, solver = coupled(images(shape, dtype), weight, isotropic), LearnedFGP(37).to(dtype)
    with torch.no_grad():
        expected = solver.advance(problem, solver.init(problem, problem.start()), 37)
    table = table_of([Schedule(solver.numbers.detach().double(), False, [[-100.0] * PLACES] * kernels.library().FORMS)])
    found = match(problem, 1e-3).solve(1e30, 100, None, table=table)
    room = 200 * torch.finfo(dtype).eps
    assert torch.allclose(found.x, expected.x, rtol=0, atol=room)


@pytest.mark.parametrize("isotropic", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2, 1, 1), (1, 3, 1, 7), (1, 4, 7, 1), (1, 3, 33, 17), (1, 3, 64, 80)])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3, 1e-4, 1e-6])
def test_whole_solves_end_proven(shape, dtype, isotropic, tolerance):
    problem = coupled(images(shape, dtype), 0.4, isotropic)
    assert isinstance(match(problem, tolerance), Denoising)
    result = lmd.solve(problem, tolerance)
    assert result.status[0].name == "TOLERANCE_REACHED"
    assert is_proven(problem, result, tolerance)
    exact = problem.double()
    least = exact.value(lmd.solve(exact, 1e-9).x)
    assert bool(result.certificate.lower_bound <= least * (1 + 1e-14))
    assert bool(result.certificate.value >= exact.value(result.x.double()) * (1 - 1e-14))


@pytest.mark.parametrize("isotropic", FORMS)
@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_change_nothing_but_the_scale(scale, dtype, isotropic):
    y = images((1, 3, 40, 48), dtype)
    problem = coupled(scale * y, 0.4 * scale, isotropic)
    result = lmd.solve(problem, 1e-4)
    assert result.status[0].name == "TOLERANCE_REACHED"
    assert is_proven(problem, result, 1e-4)


@pytest.mark.parametrize("isotropic", FORMS)
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_the_answer_does_not_depend_on_the_threads_or_the_batch(tolerance, isotropic):
    problem, before = (
        coupled(images((3, 3, 70, 131)), torch.tensor([0.1, 0.3, 2.0]), isotropic),
        torch.get_num_threads(),
    )
    try:
        torch.set_num_threads(1)
        alone = [lmd.solve(problem.select([i]), tolerance) for i in range(3)]
        torch.set_num_threads(4)
        together = lmd.solve(problem, tolerance)
    finally:
        torch.set_num_threads(before)
    for i, result in enumerate(alone):
        assert torch.equal(result.x[0], together.x[i])
        assert torch.equal(result.dual[0], together.dual[i])
        assert result.iterations[0] == together.iterations[i]


@pytest.mark.parametrize("isotropic", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_channel_is_not_coupled_to_anything(isotropic, dtype):
    y = images((2, 1, 40, 33), dtype)
    found, expected = (lmd.solve(p, 1e-4) for p in (coupled(y, 0.3, isotropic), TVDenoising(y, 0.3, isotropic)))
    assert torch.equal(found.x, expected.x)


def test_more_channels_than_are_compiled_for_and_maps_are_solved_elsewhere():
    y = images((1, kernels.library().MAX_COUPLED + 1, 12, 10))
    for problem in (coupled(y), coupled(y[:, :3], torch.full((1, 1, 12, 10), 0.3))):
        assert not isinstance(match(problem, 1e-3), Denoising)
        assert lmd.solve(problem, 1e-3).status[0].name == "TOLERANCE_REACHED"


@pytest.mark.parametrize("isotropic", FORMS)
def test_regions_are_flat_in_all_channels(isotropic):
    """Averaged over constant regions, an answer proves 1e-6 in a few iterations, and has few values in each channel."""
    y = images((1, 3, 48, 48), torch.float64)
    result = lmd.solve(coupled(y, 3.0, isotropic), 1e-6)
    numbers = [len(plane.unique()) for plane in result.x[0]]
    assert max(numbers) < y[0, 0].numel() / 4 and len(set(numbers)) == 1


def test_denoising_has_the_same_objective_as_the_model() -> None:
    y = images((2, 3, 9, 7))
    assert torch.equal(TVDenoising(y, 0.3, coupled=True).value(y), coupled(y).value(y))
