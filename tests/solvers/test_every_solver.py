"""What every solver promises: costs as declared, instances that do not mix, states that are left alone."""

import collections

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd import solvers
from lmd.problems import LeastSquares
from lmd.solvers import (
    LBFGS,
    AcceleratedMirrorDescent,
    AcceleratedStochasticMirrorDescent,
    Adam,
    BacktrackedMirrorDescent,
    BestSoFar,
    CorrectedMirrorDescent,
    ExactMirrorDescent,
    GradientDescent,
    LazyMirrorDescent,
    LearnedMirrorDescent,
    MirrorDescent,
    Nesterov,
    ProximalGradient,
)
from lmd.solvers.wrappers import Averaged, NoWorseThanStart, Sequential, WithInitialiser
from lmd.terms import Box


def with_one_mirror(solver):
    """The solver with one mirror for all iterations, which counts for all."""
    for k in range(solver.iterations - 1):
        solver.mirrors[k] = solver.tail.mirror
    return solver


MAKE = {
    AcceleratedMirrorDescent: lambda mirror: AcceleratedMirrorDescent(mirror, 0.03),
    AcceleratedStochasticMirrorDescent: lambda mirror: AcceleratedStochasticMirrorDescent(mirror, 0.03),
    Adam: lambda mirror: Adam(0.05),
    BacktrackedMirrorDescent: lambda mirror: BacktrackedMirrorDescent(mirror),
    BestSoFar: lambda mirror: BestSoFar(MirrorDescent(mirror, 0.03)),
    CorrectedMirrorDescent: lambda mirror: CorrectedMirrorDescent(mirror, 0.03, iterations=2),
    ExactMirrorDescent: lambda mirror: with_one_mirror(ExactMirrorDescent(mirror, 2)),
    GradientDescent: lambda mirror: GradientDescent(0.03),
    LBFGS: lambda mirror: LBFGS(),
    LazyMirrorDescent: lambda mirror: LazyMirrorDescent(mirror, 0.03),
    LearnedMirrorDescent: lambda mirror: LearnedMirrorDescent(mirror, iterations=3),
    MirrorDescent: lambda mirror: MirrorDescent(mirror, 0.03),
    Nesterov: lambda mirror: Nesterov(0.03),
    NoWorseThanStart: lambda mirror: NoWorseThanStart(MirrorDescent(mirror, 0.03)),
    ProximalGradient: lambda mirror: ProximalGradient(),
}
X0 = torch.tensor([[1.0, -2.0], [0.5, 0.0], [3.0, 3.0]], dtype=torch.float64)

every_solver = pytest.mark.parametrize("kind", MAKE, ids=lambda kind: kind.__name__)


def test_none_is_forgotten():
    exported = [getattr(solvers, name) for name in solvers.__all__]
    public = {item for item in exported if isinstance(item, type) and issubclass(item, solvers.Solver)}
    elsewhere = {solvers.ProximalMirrorDescent, solvers.Stochastic}  # they need more of a problem: test_family.py
    elsewhere |= {Averaged, Sequential, WithInitialiser, solvers.LearnedInteriorPoint}  # each has a file of its own
    for kind in public - {solvers.Solver, *MAKE} - elsewhere:
        assert set(kind().needs) - {"domain"}, f"{kind.__name__} runs on any problem: add it to MAKE"


@every_solver
def test_costs_are_what_is_declared(kind, counting_problem, counting_mirror):
    solver = MAKE[kind](counting_mirror)
    calls = collections.Counter()

    def spent():
        calls.update(counting_problem.calls + counting_mirror.calls)
        seen = dict(calls)
        calls.clear(), counting_problem.calls.clear(), counting_mirror.calls.clear()
        return seen

    state = solver.init(counting_problem, X0)
    assert spent() == solver.init_cost
    for _ in range(4):
        state = solver.step(counting_problem, state)
        # A step whose cost depends on the instance counts for itself; the batch is evaluated as often as the neediest.
        counted = {name: int(counts.max()) for name, counts in state.evaluations.items()}
        assert spent() == collections.Counter(solver.step_cost) + collections.Counter(counted)


@every_solver
def test_a_run_reports_those_costs(kind, counting_problem, counting_mirror):
    solver = MAKE[kind](counting_mirror)
    extra = collections.Counter()
    states = []
    result = lmd.run(solver, counting_problem, X0, iterations=5, callbacks=[lambda state, _: states.append(state)])
    for state in states:
        extra.update(dict(state.evaluations))
    assert set(result.evaluations) == set(solver.init_cost) | set(solver.step_cost) | set(extra)
    for name, counts in result.evaluations.items():
        declared = solver.init_cost.get(name, 0) + 5 * solver.step_cost.get(name, 0)
        assert counts.tolist() == (declared + extra[name] + torch.zeros(3)).tolist()


@every_solver
def test_an_instance_of_a_batch_is_the_instance_alone(kind, counting_problem, counting_mirror):
    solver = MAKE[kind](counting_mirror)
    together = lmd.run(solver, counting_problem, X0, iterations=6)
    for i in range(3):
        alone = lmd.run(solver, counting_problem.select(i), X0[i : i + 1], iterations=6)
        assert_close(together.x[i : i + 1], alone.x)
        assert_close(together.history.values[:, i : i + 1], alone.history.values)


@every_solver
def test_a_nan_in_one_start_does_not_touch_the_others(kind, counting_problem, counting_mirror):
    solver = MAKE[kind](counting_mirror)
    spoilt = X0.clone()
    spoilt[1] = torch.nan
    states = [solver.init(counting_problem, x0) for x0 in (X0, spoilt)]
    for _ in range(3):
        states = [solver.step(counting_problem, state) for state in states]
    good, bad = (state.x[[0, 2]] for state in states)
    assert_close(bad, good)


@every_solver
def test_a_state_can_be_stepped_from_twice(kind, counting_problem, counting_mirror):
    solver = MAKE[kind](counting_mirror)
    x0 = X0.clone()
    state = solver.step(counting_problem, solver.init(counting_problem, x0))
    before = state.x.clone()
    one, other = solver.step(counting_problem, state), solver.step(counting_problem, state)
    assert torch.equal(one.x, other.x) and torch.equal(state.x, before) and torch.equal(x0, X0)
    assert (state.iteration, one.iteration) == (1, 2)
    assert not torch.equal(one.x, before)


@every_solver
def test_the_values_go_down(kind, counting_problem, counting_mirror):
    values = lmd.run(MAKE[kind](counting_mirror), counting_problem, X0, iterations=100).values
    assert bool((values < 0.1 * counting_problem.value(X0)).all())


@every_solver
def test_float32_stays_float32(kind):
    problem = LeastSquares(torch.eye(2), torch.full((2, 2), 0.5))
    result = lmd.run(
        MAKE[kind](lmd.mirrors.Quadratic(2)), problem, torch.tensor([[0.2, 0.8], [1.0, 0.0]]), iterations=3
    )
    assert result.x.dtype == torch.float32 and result.history.values.dtype == torch.float32


@every_solver
def test_the_graph_leads_back_to_the_start(kind, counting_problem, counting_mirror):
    solver = MAKE[kind](counting_mirror)
    x0 = X0.clone().requires_grad_()
    state = solver.init(counting_problem, x0)
    for _ in range(3):
        state = solver.step(counting_problem, state)
    values = counting_problem.value(state.x)
    values.sum().backward()
    solved = values < 1e-20  # by L-BFGS, whatever the start
    assert bool(torch.isfinite(x0.grad).all()) and bool(((x0.grad != 0).any(dim=1) | solved).all())


class Pull(lmd.problems.Problem):
    """The nearest point of a box to (5, ..., 5), which is its corner: every step leads out of it."""

    domain = Box(-1.0, 1.0)

    def value(self, x):
        return (x - 5).square().sum(dim=1)


@every_solver
def test_a_solver_keeps_to_the_domain_or_is_refused(kind):
    solver, x0 = MAKE[kind](lmd.mirrors.Quadratic(3)), torch.zeros(2, 3)
    if solver.keeps_to_domain(Pull()):
        assert float(lmd.run(solver, Pull(), x0, iterations=20).x.abs().max()) <= 1
    else:
        with pytest.raises(
            lmd.errors.CapabilityError, match=r"may leave the problem's domain \(entries between -1 and 1"
        ):
            lmd.run(solver, Pull(), x0, iterations=20)


@pytest.mark.parametrize(
    "kind", [k for k in MAKE if k not in (Adam, GradientDescent, LBFGS, Nesterov, ProximalGradient)]
)
def test_with_a_mirror_on_the_domain_it_is_kept_to(kind):
    mirror = lmd.mirrors.EuclideanBox(-1.0, 1.0)
    result = lmd.run(MAKE[kind](mirror), Pull(), torch.zeros(2, 3), iterations=20)
    assert 0.1 < float(result.x.abs().max()) <= 1
    with pytest.raises(lmd.errors.CapabilityError, match="may leave"):
        lmd.run(MAKE[kind](lmd.mirrors.EuclideanBox(-2.0, 2.0)), Pull(), torch.zeros(2, 3), iterations=20)


def test_a_start_outside_the_domain_is_refused():
    with pytest.raises(lmd.errors.DomainError, match=r"^x0: got instance 1, which is 1 outside"):
        lmd.run(GradientDescent(), Pull(), torch.tensor([[0.0], [2.0]]))
