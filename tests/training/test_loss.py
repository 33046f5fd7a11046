import pytest
import torch

import lmd
from lmd import InputError
from lmd.training import TrainingSettings
from lmd.training.loss import UnrolledLoss


def sample(family, batch=5, seed=0):
    return family.sample(batch, torch.Generator().manual_seed(seed))


def loss_and_gradients(solver, problem, x0, weight=1.0, **settings):
    parts = UnrolledLoss(solver, TrainingSettings(**settings))(problem, x0, weight)
    parts.loss.backward()
    return parts, {name: parameter.grad for name, parameter in solver.named_parameters()}


@pytest.mark.parametrize("at", ["iterates", "start", "all"])
def test_it_is_the_formula_of_the_paper_over_the_iterates_of_run(worker, at):
    solver = worker.rough_solver()
    problem, x0 = sample(worker.BowlFamily())
    weights = [0.5, 0.0, 1.0, 2.0]
    points = [x0]
    lmd.run(solver, problem, x0, 4, callbacks=[lambda state, values: points.append(state.x)])
    value = sum(r * problem.value(x) for r, x in zip(weights, points[1:], strict=True)).mean()
    measured = {"iterates": points[1:], "start": points[:1], "all": points}[at]
    with torch.no_grad():
        gaps = [solver.mirror.to_primal(solver.mirror.to_dual(x)) - x for x in measured]
    inconsistency = sum(gap.norm(p=1, dim=1) for gap in gaps).mean()
    settings = TrainingSettings(value_weights=weights, consistency_at=at)
    parts = UnrolledLoss(solver, settings)(problem, x0, 3.0)
    torch.testing.assert_close(parts.value, value)
    torch.testing.assert_close(parts.inconsistency, inconsistency)
    torch.testing.assert_close(parts.loss.detach(), value + 3.0 * inconsistency)
    assert not parts.value.requires_grad and parts.loss.requires_grad


def test_the_start_counts_where_it_has_a_weight(worker):
    solver = worker.rough_solver()
    problem, x0 = sample(worker.BowlFamily())
    without, beside = (
        UnrolledLoss(solver, TrainingSettings(start_weight=weight))(problem, x0, 1.0).value for weight in (0.0, 2.0)
    )
    torch.testing.assert_close(beside, without + 2 * problem.value(x0).mean())
    with pytest.raises(InputError, match="start_weight"):
        TrainingSettings(start_weight=-1.0)


@pytest.mark.parametrize("weights", ["all", "last"])
def test_emphasis_has_the_derivatives_of_the_logarithm_of_a_mean_of_powers(weights):
    problem, x0 = sample(lmd.problems.TVDenoisingFamily([torch.rand(3, 16, 16)], noise=(0.0, 0.2), crop=12))
    solver = lmd.solvers.LearnedDual(3, 3)
    settings = {"objective": "duality gap", "value_weights": weights}
    _, gradients = loss_and_gradients(solver, problem, x0, emphasis=0.5, **settings)
    state, total = solver.init(problem, x0), 0.0
    solver.zero_grad()
    for k in range(1, 4):
        state = solver.step(problem, state)
        gap = problem.gap(state.x, state.dual_point) / problem.value(state.x) + 1e-7
        total = total + (weights == "all" or k == 3) * 10 / 0.5 * gap.sqrt().mean().log10()
    total.backward()
    for name, parameter in solver.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)
    counted, plain = (
        UnrolledLoss(solver, TrainingSettings(emphasis=power, **settings))(problem, x0, 0.0).value
        for power in (0.5, 0.0)
    )
    assert counted > plain  # the worst count more
    for wrong in ({"emphasis": -1.0, **settings}, {"emphasis": 1.0, "objective": "value"}):
        with pytest.raises(InputError, match="emphasis"):
            TrainingSettings(**wrong)


def test_both_duality_gaps_are_those_of_the_iterate_and_of_the_solution():
    problem, x0 = sample(lmd.problems.TVDenoisingFamily([torch.rand(3, 16, 16)], noise=(0.0, 0.2), crop=12))
    solver = lmd.solvers.LearnedFGP(4)
    loss = UnrolledLoss(solver, TrainingSettings(objective="both duality gaps", value_weights="last"))
    with pytest.raises(InputError, match="objective"):
        loss(problem, x0, 0.0)
    problem.reference = lmd.solve(problem, 1e-7).x
    state = solver.init(problem, x0)
    for _ in range(4):
        state = solver.step(problem, state)
    gaps = [problem.gap(x, state.dual) / problem.value(x) + 1e-7 for x in (state.x, problem.reference)]
    assert bool((gaps[1] < gaps[0]).all())
    expected = sum(10 * gap.log10() for gap in gaps).mean()
    torch.testing.assert_close(loss(problem, x0, 0.0).value, expected.detach(), rtol=1e-4, atol=1e-4)


def test_the_gradient_is_that_of_finite_differences(worker):
    solver = worker.rough_solver().double()
    problem, x0 = sample(worker.BowlFamily())
    problem, x0 = worker.Bowl(problem.b.double()), x0.double()
    _, gradients = loss_and_gradients(solver, problem, x0)
    loss = UnrolledLoss(solver, TrainingSettings())
    for parameter in (solver.mirror.forwards, solver.mirror.backwards, solver.steps.sizes):
        direction = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * 1e-6 * direction
                values.append(loss(problem, x0, 1.0).loss)
                parameter -= sign * 1e-6 * direction
        name = next(name for name, other in solver.named_parameters() if other is parameter)
        assert float((gradients[name] * direction).sum()) == pytest.approx(
            float(values[0] - values[1]) / 2e-6, rel=1e-5
        )


@pytest.mark.parametrize("at", ["iterates", "start", "all"])
def test_recomputing_changes_no_bit(worker, at):
    problem, x0 = sample(worker.BowlFamily())
    plain, gradients = loss_and_gradients(worker.rough_solver(), problem, x0, consistency_at=at)
    again, recomputed = loss_and_gradients(worker.rough_solver(), problem, x0, consistency_at=at, recompute=True)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert set(gradients) == set(recomputed)
    for name, gradient in gradients.items():
        assert gradient is None or torch.equal(gradient, recomputed[name])
    assert gradients["mirror.never_used"] is None and gradients["mirror.backwards"] is not None


def test_recomputing_keeps_the_iterates_alone(worker):
    def stored(recompute, iterations):
        numbers = [0]

        def keep(tensor):
            numbers[0] += tensor.numel()
            return tensor

        solver = lmd.solvers.LearnedMirrorDescent(worker.RoughPair(hidden=200), iterations)
        problem, x0 = sample(worker.BowlFamily())
        loss = UnrolledLoss(solver, TrainingSettings(recompute=recompute))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss(problem, x0, 1.0)
        return numbers[0]

    points = 5 * 2
    assert stored(False, 12) - stored(False, 2) > 10 * 200 * 5  # hidden layers of every iteration
    assert stored(True, 12) - stored(True, 2) <= 10 * 3 * points


def test_no_evaluation_is_made_twice(worker):
    counts = {"to_dual": 0, "to_primal": 0, "value": 0}

    class CountingPair(worker.RoughPair):
        def to_dual(self, x):
            counts["to_dual"] += 1
            return super().to_dual(x)

        def to_primal(self, y, tolerance=None):
            counts["to_primal"] += 1
            return super().to_primal(y, tolerance)

    class CountingLeastSquares(lmd.problems.LeastSquares):
        def value(self, x):
            counts["value"] += 1
            return super().value(x)

    problem, x0 = sample(lmd.problems.LeastSquaresFamily(dtype=torch.float32))
    problem = CountingLeastSquares(problem.W, problem.b)
    solver = lmd.solvers.LearnedMirrorDescent(CountingPair(), iterations=6)
    UnrolledLoss(solver, TrainingSettings())(problem, x0, 1.0)
    assert counts == {"to_dual": 7, "to_primal": 12, "value": 6}
    counts.update(to_dual=0, to_primal=0, value=0)
    UnrolledLoss(solver, TrainingSettings(value_weights="last"))(problem, x0, 0.0)
    assert counts == {"to_dual": 6, "to_primal": 6, "value": 1}


def test_an_exact_mirror_or_none_costs_no_inconsistency(worker):
    problem, x0 = sample(lmd.problems.LeastSquaresFamily())
    parts = UnrolledLoss(worker.exact_solver(), TrainingSettings())(problem, x0, 1.0)
    assert float(parts.inconsistency) == 0.0
    steps = lmd.solvers.LearnedSteps(3).double()
    parts = UnrolledLoss(lmd.solvers.GradientDescent(steps), TrainingSettings(iterations=3))(problem, x0, 1.0)
    assert float(parts.inconsistency) == 0.0
    parts.loss.backward()
    assert bool((steps.sizes.grad != 0).all())


def test_without_a_weight_the_inconsistency_is_a_measurement_only(worker):
    solver = worker.rough_solver()
    problem, x0 = sample(worker.BowlFamily())
    loss = UnrolledLoss(solver, TrainingSettings())
    assert float(loss(problem, x0, 0.0).inconsistency) == 0.0
    with torch.no_grad():
        parts = loss(problem, x0, 0.0)
    assert float(parts.inconsistency) > 0.1
    assert float(parts.loss) == float(parts.value)


def test_a_wrapped_solver_is_trained_through_its_wrapper(worker):
    problem, x0 = sample(worker.BowlFamily())
    solver = lmd.solvers.BestSoFar(worker.rough_solver())
    parts, gradients = loss_and_gradients(solver, problem, x0)
    inner, _ = loss_and_gradients(worker.rough_solver(), problem, x0)
    assert float(parts.inconsistency) == float(inner.inconsistency) > 0
    assert float(parts.value) <= float(inner.value)
    assert gradients["solver.mirror.backwards"] is not None


def test_instances_do_not_touch_each_other(worker):
    solver = worker.rough_solver()
    problem, x0 = sample(worker.BowlFamily(), batch=4)
    loss = UnrolledLoss(solver, TrainingSettings())
    whole = loss(problem, x0, 1.0).loss
    alone = [loss(problem.select(slice(i, i + 1)), x0[i : i + 1], 1.0).loss for i in range(4)]
    torch.testing.assert_close(whole, sum(alone) / 4)


def test_a_solver_without_a_horizon_needs_iterations():
    with pytest.raises(InputError, match="iterations: got none, expected how many to unroll"):
        UnrolledLoss(lmd.solvers.MirrorDescent(lmd.mirrors.Quadratic(2), 0.1), TrainingSettings())
