import copy
import pickle

import pytest
import torch

import lmd
from lmd.errors import InputError
from lmd.problems import ControlFamily, QuadraticProgram
from lmd.solvers import ADMM


def control(batch=4, seed=0):
    return ControlFamily().sample(batch, torch.Generator().manual_seed(seed))


@torch.no_grad()
def test_inverted_matrices_are_cached_for_problems_that_share_them():
    solver, (problem, x0), (other, y0) = ADMM([1, 2]), control(), control(seed=1)
    inverses = solver.init(problem, x0).inverses
    assert solver.init(other, y0).inverses is inverses
    found = [each.advance(other, each.init(other, y0), 6).x for each in (solver, ADMM([1, 2]))]
    assert torch.equal(*found)
    solver.penalties.add_(1.0)
    assert not torch.equal(solver.init(problem, x0).inverses, inverses)


def test_matrices_of_another_class_are_not_used():
    problem, x0 = control()
    solver = ADMM()
    lmd.run(solver, problem, x0, 3)
    other = QuadraticProgram(2 * problem.f.quadratic[0], problem.f.quadratic[1], -0.5, 0.5)
    result = lmd.solve(other, 1e-4, solver=solver)
    assert result.status[0].name == "TOLERANCE_REACHED"


@torch.no_grad()
def test_matrices_of_each_instance_are_not_cached():
    problem, x0 = control()
    P = problem.f.quadratic[0].expand(4, 48, 48).clone()
    solver, own = ADMM(), QuadraticProgram(P, problem.f.quadratic[1], -0.5, 0.5)
    assert solver.init(own, x0).inverses is not solver.init(own, x0).inverses


def test_whatever_was_learned_it_converges():
    problem, _ = control()
    solver = ADMM([1, 2])
    with torch.no_grad():
        solver.penalties.copy_(4 * torch.randn(3, 2, generator=torch.Generator().manual_seed(1)))
        solver.penalties[-1] = 0.5
        solver.relaxations.copy_(torch.tensor([9.0, -9.0, 3.0]))
    result = lmd.solve(problem, 1e-4, solver=solver)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}


def test_penalties_and_relaxations_have_gradients():
    problem, x0 = control()
    solver = ADMM([1])
    problem.value(solver.advance(problem, solver.init(problem, x0), 2).x).sum().backward()
    assert float(solver.penalties.grad[:, 0].abs().min()) > 0 and float(solver.relaxations.grad[1].abs()) > 0


def test_a_relaxation_that_may_diverge_is_refused():
    with pytest.raises(InputError, match="between 0 and 2"):
        ADMM(relaxation=2.0)


def test_blocks_with_one_penalty_are_the_method_without():
    problem, x0 = control()
    with torch.no_grad():
        found = [s.advance(problem, s.init(problem, x0), 6).x for s in (ADMM([1], blocks=[40, 8]), ADMM([1]))]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("blocks", [[1] * 48, [40, 8]])
def test_whatever_the_penalties_of_the_blocks_it_converges(blocks):
    problem, x0 = control()
    solver = ADMM([1], blocks=blocks)
    with torch.no_grad():
        solver.penalties.copy_(torch.randn(solver.penalties.shape, generator=torch.Generator().manual_seed(1)))
    result = lmd.solve(problem, 1e-4, solver=solver)
    assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
    problem.value(solver.advance(problem, solver.init(problem, x0), 2).x).sum().backward()
    assert float(solver.penalties.grad[0, :-1].abs().min()) > 0


@torch.no_grad()
def test_what_a_start_is_outside_is_how_much_its_bounds_press():
    problem, x0 = control()
    solver = ADMM()
    state = solver.init(problem, x0 + torch.linspace(-1, 1, 48))
    torch.testing.assert_close(state.x, (x0 + torch.linspace(-1, 1, 48)).clamp(-0.5, 0.5))
    assert bool((state.dual * state.x >= 0).all()) and float(state.dual[:, 20:28].abs().max()) == 0
    result = lmd.solve(problem, 1e-6, solver=solver, iterations=2000)
    again = solver.step(problem, solver.init(problem, result.x + result.dual / solver.init(problem, x0).schedule[0][0]))
    torch.testing.assert_close(again.x, result.x, rtol=1e-3, atol=1e-3)


def test_numbers_of_a_row_are_searched_along_their_directions():
    for blocks, count in (([], 3), ([40, 8], 4), ([1] * 48, 3)):
        solver = ADMM([1], blocks=blocks)
        directions = solver.search_directions()
        assert len(directions) == count
        solver.move_(1, 0.5 * directions.sum(dim=0))
        assert torch.equal(solver.penalties[-1], torch.full_like(solver.penalties[-1], 0.5))
        assert float(solver.penalties[0].detach().abs().max()) == 0


@torch.no_grad()
def test_numbers_of_phases_are_those_of_their_iterations():
    problem, x0 = control()
    phased, each = ADMM([3]), ADMM([1, 2, 3])
    for solver, row in ((phased, 1), (each, 3)):
        solver.move_(row, torch.tensor([0.5, 0.0, 0.3]))
    found = [solver.advance(problem, solver.init(problem, x0), 6).x for solver in (phased, each)]
    assert torch.equal(*found) and phased.horizon == each.horizon == 3
    with pytest.raises(InputError, match="ascending"):
        ADMM([2, 2])


def test_one_that_was_used_is_copied_and_pickled():
    problem, x0 = control()
    solver = ADMM([1])
    expected = lmd.run(solver, problem, x0, 3).x
    for again in (copy.deepcopy(solver), pickle.loads(pickle.dumps(solver))):
        assert torch.equal(lmd.run(again, problem, x0, 3).x, expected)


@pytest.mark.parametrize("blocks", [[], [40, 8]])
def test_it_is_made_and_used_in_inference_mode(blocks):
    problem, x0 = control()
    with torch.inference_mode():
        again, y0 = control()
        for each, start in ((problem, x0), (again, y0)):
            solver = ADMM([1], blocks=blocks)
            found = [lmd.run(solver, each, start, 3).x for _ in range(2)]
            assert torch.equal(*found)
    solver = ADMM([1], blocks=blocks)
    solver.requires_grad_(False)
    with torch.inference_mode():
        lmd.run(solver, problem, x0, 3)
    state = solver.init(problem, x0.clone().requires_grad_())
    problem.value(solver.advance(problem, state, 2).x).sum().backward()
