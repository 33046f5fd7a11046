from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError
from lmd.problems import LeastSquares, TVDenoising, TVInpainting
from lmd.solvers import FGP


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMD_CACHE", str(tmp_path))


def problem(dtype=torch.float64, **arguments):
    generator = torch.Generator().manual_seed(0)
    edges = torch.linspace(0, 1, 10, dtype=dtype).round().expand(2, 1, 9, 10)
    noisy = edges + 0.1 * torch.randn(2, 1, 9, 10, dtype=dtype, generator=generator)
    return TVDenoising(noisy, torch.tensor([0.2, 0.5], dtype=dtype), **arguments)


def states(solver, problem, x0, count):
    found = [solver.init(problem, x0)]
    for _ in range(count):
        found.append(solver.step(problem, found[-1]))
    return found


def textbook(problem, count):
    """The algorithm as it is printed, on the normalised dual of 1/2 ||x - y||^2 + bound TV."""
    K, y = problem.operator, problem.noisy
    bound = problem.bound.reshape(-1, 1, 1, 1, 1)
    p = q = torch.zeros_like(K(y))
    m, points = 1.0, []
    for _ in range(count):
        new = torch.minimum(torch.maximum(q + K(y - K.adjoint(q)) / K.norm**2, -bound), bound)
        after = (1 + (1 + 4 * m * m) ** 0.5) / 2
        q, p, m = new + (m - 1) / after * (new - p), new, after
        points.append(y - K.adjoint(p))
    return points


def test_it_is_the_textbooks():
    tv = problem(halved=True)
    for state, expected in zip(states(FGP(), tv, tv.noisy, 30)[1:], textbook(tv, 30), strict=True):
        assert_close(state.x, expected, rtol=1e-10, atol=1e-10)


def test_the_form_of_the_problem_does_not_matter():
    whole, half = problem(), problem(halved=True)
    assert_close(states(FGP(), whole, whole.noisy, 20)[-1].x, states(FGP(), half, half.noisy, 20)[-1].x)


@pytest.mark.parametrize("isotropic", [False, True])
def test_the_dual_gap_falls_as_the_theorem_says(isotropic):
    tv = problem(isotropic=isotropic)
    run = states(FGP(), tv, tv.noisy, 200)
    best = states(FGP(restart=True), tv, tv.noisy, 3000)[-1].dual
    radius = (best - run[0].dual).square().flatten(1).sum(1)
    for k in (5, 20, 80, 200):
        bound = 2 * tv.operator.norm**2 / tv.f.strong_convexity * radius / (k + 1) ** 2
        assert bool((tv.dual_value(best) - tv.dual_value(run[k].dual) <= bound).all())


def test_x_belongs_to_the_dual_point_and_the_adjoints_are_extrapolated_rightly():
    tv = problem()
    for state in states(FGP(), tv, tv.noisy, 12)[1:]:
        assert_close(state.x, tv.f.tilted_minimiser(tv.operator.adjoint(state.dual)))
        assert_close(state.adjoint, tv.operator.adjoint(state.dual))
        assert_close(state.ahead_adjoint, tv.operator.adjoint(state.ahead), rtol=1e-10, atol=1e-10)


def test_restarts_converge_to_rounding_and_each_instance_has_its_own():
    tv = problem()
    plain, restarted = (lmd.run(FGP(restart=r), tv, iterations=1500) for r in (False, True))
    gaps = [result.values - lmd.guarantees.minimum(tv) for result in (plain, restarted)]
    assert bool((gaps[1] <= 1e-9 * lmd.guarantees.minimum(tv)).all()) and bool((gaps[1] < gaps[0]).all())
    momentum = torch.stack([state.momentum for state in states(FGP(restart=True), tv, tv.noisy, 1500)])
    resets = [set((momentum[1:, i] < momentum[:-1, i]).nonzero().flatten().tolist()) for i in range(2)]
    assert resets[0] and resets[1] and resets[0] != resets[1]


@pytest.mark.parametrize("restart", [False, True])
def test_a_batch_gives_what_each_instance_gives_alone(restart):
    tv = problem(torch.float32)
    together = lmd.run(FGP(restart=restart), tv, iterations=300)
    for i in range(2):
        alone = lmd.run(FGP(restart=restart), tv.select(i), iterations=300)
        assert_close(alone.x[0], together.x[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("restart", [False, True])
def test_a_step_leaves_its_state_alone_and_is_the_same_when_recorded(restart):
    tv, solver = problem(), FGP(restart=restart)
    with torch.no_grad():
        state = states(solver, tv, tv.noisy, 3)[-1]
        before = {name: value.clone() for name, value in vars(state).items() if isinstance(value, torch.Tensor)}
        after = solver.step(tv, state)
    for name, value in before.items():
        assert_close(getattr(state, name), value, rtol=0, atol=0)
    recorded = solver.step(tv, state)
    assert_close(recorded.x, after.x, rtol=0, atol=0)


def test_training_can_differentiate_through_steps():
    tv, solver = problem(), FGP()

    def unrolled(dual):
        state = solver.init(tv, tv.noisy)
        adjoint = tv.operator.adjoint(dual)
        state = replace(state, dual=dual, adjoint=adjoint, ahead=dual, ahead_adjoint=adjoint)
        for _ in range(2):
            state = solver.step(tv, state)
        return state.x

    start = 0.05 * torch.randn(2, 1, 2, 9, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(unrolled, start.requires_grad_())


def test_evaluations_are_counted(monkeypatch):
    tv = problem()
    calls = []
    for owner, name in ((tv.operator, "_apply"), (tv.operator, "_adjoint"), (tv.f, "tilted_minimiser")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda x, real=real, name=name: calls.append(name) or real(x))
    solver = FGP()
    state = solver.init(tv, tv.noisy)
    assert (calls.count("_apply"), len(calls)) == (solver.init_cost["operator"], 1)
    calls.clear()
    solver.step(tv, state)
    assert {
        "operator": calls.count("_apply"),
        "adjoint": calls.count("_adjoint"),
        "tilted_minimiser": calls.count("tilted_minimiser"),
    } == solver.step_cost


def test_it_can_be_saved_and_loaded(tmp_path):
    lmd.solvers.save(FGP(multiplier=0.5, restart=True), tmp_path)
    loaded = lmd.solvers.load(tmp_path)
    assert loaded.config() == {"multiplier": 0.5, "restart": True}


def test_it_says_what_a_problem_lacks():
    with pytest.raises(CapabilityError, match=r"LeastSquares, which has no operator.*FGP needs"):
        lmd.run(FGP(), LeastSquares(torch.eye(2), torch.ones(1, 2)), torch.ones(1, 2))
    inpainting = TVInpainting(torch.ones(1, 1, 3, 3), torch.eye(3))
    with pytest.raises(CapabilityError, match=r"TVInpainting, which has no f.strong_convexity.*FGP needs"):
        lmd.run(FGP(), inpainting)
