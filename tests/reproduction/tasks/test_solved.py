"""A family of solved instances: solutions that are right, held-out instances that are never trained on."""

import pytest
import torch

import lmd
from lmd.errors import InputError
from lmd.problems import TVDenoisingFamily
from lmd.reproduction.tasks.common import SolvedFamily
from lmd.solvers import FGP, LearnedDual
from lmd.training import TrainingSettings
from lmd.training.loss import UnrolledLoss

IMAGES = torch.rand(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))


def family() -> SolvedFamily:
    return SolvedFamily(TVDenoisingFamily(IMAGES, crop=12), 40, FGP(restart=True), iterations=400)


def test_references_are_the_solutions_and_are_selected_with_the_instances() -> None:
    problem, x0 = family().sample(6, torch.Generator().manual_seed(3))
    assert problem.reference is not None and x0.shape == problem.reference.shape
    torch.testing.assert_close(problem.reference, lmd.guarantees.minimiser(problem), atol=1e-3, rtol=0)
    assert torch.equal(problem.select(2).reference, problem.reference[2:3])


def test_solutions_can_be_finished() -> None:
    pool = SolvedFamily(TVDenoisingFamily(IMAGES, crop=12), 10, FGP(), 1, finish=lambda problem, x: 0 * x + 7)
    assert bool((pool.sample(2, torch.Generator().manual_seed(0))[0].reference == 7).all())


def test_held_out_instances_are_never_sampled() -> None:
    pool, generator = family(), torch.Generator().manual_seed(0)
    held_out = {tuple(x.flatten().tolist()) for x in pool.held_out(50, generator)[1]}
    sampled = {tuple(x.flatten().tolist()) for _ in range(50) for x in pool.sample(20, generator)[1]}
    assert len(held_out) == 4 and len(sampled) > 30
    assert not held_out & sampled


@pytest.mark.parametrize("objective", ["gap", "distance", "gap and distance"])
def test_objectives_are_decibels_to_the_reference(objective: str) -> None:
    problem, x0 = family().sample(5, torch.Generator().manual_seed(0))
    solver = LearnedDual(3, 3)
    found = UnrolledLoss(solver, TrainingSettings(objective=objective, value_weights="last"))(problem, x0, 0.0)
    x = lmd.run(solver, problem, x0, 3).x
    least, expected = problem.value(problem.reference), torch.zeros(5)
    if "gap" in objective:
        expected = 10 * torch.log10((problem.value(x) - least) / least)
    if "distance" in objective:
        expected = expected + 10 * torch.log10((x - problem.reference).square().flatten(1).mean(dim=1))
    torch.testing.assert_close(found.value, expected.mean(), rtol=1e-3, atol=0.01)


def test_an_objective_without_references_says_what_it_needs() -> None:
    problem, x0 = TVDenoisingFamily(IMAGES).sample(2, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="`reference`"):
        UnrolledLoss(LearnedDual(2, 3), TrainingSettings(objective="gap"))(problem, x0, 0.0)
