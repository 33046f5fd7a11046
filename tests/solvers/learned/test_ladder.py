"""Several horizons: each instance gets the one that its tolerance and roughness ask for, alone and in a batch."""

import copy
import pickle

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd import kernels
from lmd.errors import InputError
from lmd.problems import TVDenoising
from lmd.solvers import FGP, LearnedFGP
from lmd.solvers.learned.fgp import FORMS, LOWEST, NODES, PLACES, RATIO
from lmd.solvers.learned.ladder import Ladder
from lmd.tasks.steps import STEPS


def images(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def ladder():
    rungs = []
    for horizon in (3, 9):
        rung = LearnedFGP(horizon)
        with torch.no_grad():
            rung.numbers[0] *= torch.linspace(0.8, 1.2, NODES)[:, None]
        rungs.append(rung)
    reach = [10 ** (-0.5 * place) for place in range(1, PLACES + 2)]
    return Ladder(rungs, [[reach[:-1]] * FORMS, [reach[1:]] * FORMS])


@pytest.mark.parametrize("isotropic", [False, True])
def test_an_instance_of_a_batch_gets_what_it_gets_alone(isotropic):
    weights = torch.tensor([2.0, 0.3, 0.01])
    batch = TVDenoising(images(3, 1, 12, 13), weights, isotropic)
    together = lmd.solve(batch, 1e-2, solver=ladder())
    for i in range(3):
        alone = lmd.solve(batch.select(i), 1e-2, solver=ladder())
        assert_close(together.x[i : i + 1], alone.x, rtol=0, atol=0)
        assert int(together.iterations[i]) == int(alone.iterations)
    assert len(set(together.iterations.tolist())) > 1  # not all have the same horizon


@pytest.mark.parametrize("isotropic", [False, True])
def test_the_history_begins_with_the_value_of_the_start(isotropic):
    problem = TVDenoising(images(2, 3, 12, 13), 0.3, isotropic)
    result = lmd.solve(problem, 1e-1, solver=ladder())
    assert_close(result.history.values[0], problem.value(problem.start()))
    elsewhere = lmd.solve(problem, 1e-1, solver=ladder(), x0=0.5 * problem.start())
    assert_close(elsewhere.history.values[0], problem.value(0.5 * problem.start()))


def test_numbers_of_one_roughness_are_those_of_a_batch():
    rung = ladder().rungs[1]
    rough = torch.tensor([1e-9, LOWEST, 1.7 * LOWEST, LOWEST * RATIO**2.4, 1e9])
    for one, numbers in zip(rough.tolist(), rung.numbers_for(rough).unbind(1), strict=True):
        assert_close(rung.numbers_at(one), numbers, rtol=1e-5, atol=1e-6)


def test_a_reach_for_every_rung():
    with pytest.raises(InputError, match=r"^reach: got 1 rows, expected 2 rows"):
        Ladder([LearnedFGP(3), LearnedFGP(9)], [[[0.1] * PLACES] * FORMS])


def test_it_is_saved_and_loaded(tmp_path):
    problem = TVDenoising(images(1, 1, 12, 13), 0.3)
    again = lmd.solvers.load(lmd.solvers.save(ladder(), tmp_path / "ladder"))
    assert_close(lmd.solve(problem, 1e-2, solver=again).x, lmd.solve(problem, 1e-2, solver=ladder()).x)


def test_a_start_that_is_the_image_turned_has_its_own_value():
    problem = TVDenoising(images(1, 1, 12, 12), 0.3)
    turned = problem.start().mT  # the same memory, read in another order
    result = lmd.solve(problem, 1e-1, solver=ladder(), x0=turned)
    assert_close(result.history.values[0], problem.value(turned))
    assert float(result.history.values[0]) > 1.1 * float(problem.value(problem.start()))


@pytest.mark.parametrize(("weight", "tolerance", "iterations"), [(1e-3, 1e-6, 16), (1e-3, 1e-2, 3), (0.3, 1e-6, None)])
def test_far_beyond_what_was_learned_it_is_fgp_unless_few_iterations_will_do(weight, tolerance, iterations):
    problem = TVDenoising(images(1, 1, 24, 24), weight)
    ours, classical = (lmd.solve(problem, tolerance, solver=each) for each in (None, FGP(restart=True)))
    assert torch.equal(ours.x, classical.x) == (iterations == 16)
    assert iterations is None or int(ours.iterations) <= iterations


def test_one_that_was_used_is_copied_and_pickled():
    problem, used = TVDenoising(images(1, 1, 12, 13), 0.3), ladder()
    expected = lmd.solve(problem, 1e-2, solver=used).x
    for again in (copy.deepcopy(used), pickle.loads(pickle.dumps(used))):
        assert torch.equal(lmd.solve(problem, 1e-2, solver=again).x, expected)


def test_weights_that_were_loaded_after_it_was_used_count():
    problem, used, other = TVDenoising(images(1, 1, 12, 13), 0.3), ladder(), ladder()
    with torch.no_grad():
        for rung in other.rungs:
            rung.numbers.mul_(0.5)
    assert not torch.equal(lmd.solve(problem, 1e-2, solver=used).x, lmd.solve(problem, 1e-2, solver=other).x)
    used.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    assert torch.equal(lmd.solve(problem, 1e-2, solver=used).x, lmd.solve(problem, 1e-2, solver=other).x)


@pytest.mark.parametrize("kind", ["as it is", "moved", "rungs moved", "shared", "not in one piece"])
def test_numbers_that_were_written_after_it_was_used_count(kind):
    problem, used = TVDenoising(images(1, 1, 12, 13).double(), 0.3), ladder()
    if kind == "not in one piece":
        for rung in used.rungs:
            rung.numbers.data = rung.numbers.data.mT.contiguous().mT
    before = lmd.solve(problem, 1e-2, solver=used).x
    if kind == "moved":
        used.double()
    for rung in used.rungs:
        if kind == "rungs moved":
            rung.double()
        if kind == "shared":  # which puts them elsewhere in memory
            rung.share_memory()
    assert torch.equal(lmd.solve(problem, 1e-2, solver=used).x, before)
    with torch.no_grad():
        for rung in used.rungs:
            rung.numbers.mul_(0.5)
    assert not torch.equal(lmd.solve(problem, 1e-2, solver=used).x, before)


def test_one_that_was_made_in_inference_mode_sees_its_changes():
    problem = TVDenoising(images(1, 1, 12, 13), 0.3)
    with torch.inference_mode():
        made = ladder()
        before = lmd.solve(problem, 1e-2, solver=made).x
        for rung in made.rungs:
            rung.numbers.mul_(0.5)
        assert not torch.equal(lmd.solve(problem, 1e-2, solver=made).x, before)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize(("step", "momentum"), [(0.0, 0.0), (3.0, 1.5), (1.0, -0.9)])
def test_whatever_the_numbers_are_the_tolerance_is_reached_and_proven(isotropic, step, momentum):
    """Numbers that get nowhere, or do not converge, are taken up again at most while they lower the gap."""
    solver = ladder()
    with torch.no_grad():
        for rung in solver.rungs:
            rung.numbers[0], rung.numbers[1] = step, momentum
    problem = TVDenoising(images(2, 1, 40, 33), torch.tensor([0.3, 0.05]), isotropic)
    result = lmd.solve(problem, 1e-4, solver=solver)
    assert [status.name for status in result.status] == ["TOLERANCE_REACHED"] * 2
    value, gap = problem.double().certified_gap(result.x.double(), result.dual.double())
    assert bool((gap <= 1.01e-4 * value).all())


@pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels: installed without a C compiler")
def test_numbers_are_taken_up_again_where_a_schedule_was_not_enough():
    """One that promises more than it keeps is followed by another, which is faster than FGP from there."""
    smooth = torch.nn.functional.interpolate(images(1, 1, 6, 6), size=(120, 120), mode="bicubic")
    problem = TVDenoising(smooth + 0.02 * torch.randn(smooth.shape, generator=torch.Generator().manual_seed(1)), 0.3)
    rungs = [lmd.zoo.load(f"denoise-steps-{n}", bare=True) for n in (21, 34, 55, 89, 144)]
    solver = Ladder(rungs, [[[1e-9] * PLACES] * FORMS, *(STEPS[n] for n in (34, 55, 89, 144))])
    counts = [int(lmd.solve(problem, 1e-3, solver=each).iterations) for each in (solver, rungs[0], FGP(restart=True))]
    assert 21 < counts[0] < min(counts[1:])
