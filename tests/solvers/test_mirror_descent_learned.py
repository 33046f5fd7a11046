"""Mirror descent with learned pairs: the paper's re-encoding form and the lazy form, which share one step."""

import collections

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.mirrors import ConvPair, DensePair
from lmd.mirrors.base import norm_of
from lmd.problems import LeastSquaresFamily, Problem
from lmd.solvers import LazyMirrorDescent, LearnedMirrorDescent, LearnedSteps, MirrorDescent


class Counting(DensePair):
    """A pair that counts how often its networks are evaluated, whoever asks."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.calls = collections.Counter()
        self.forward_net.gradient = self.counted("to_dual", self.forward_net.gradient)
        self.backward_net.register_forward_pre_hook(lambda *_: self.calls.update(["to_primal"]))

    def counted(self, name, function):
        def call(x):
            self.calls[name] += 1
            return function(x)

        return call


def shaken(mirror):
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in mirror.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    mirror.forward_net.constrain_()
    return mirror


@pytest.fixture
def sample():
    return LeastSquaresFamily().sample(5, torch.Generator().manual_seed(0))


class Pull(Problem):
    """f(x) = 1/2 ||x - y||^2 on images."""

    batched = ("y",)

    def __init__(self, y):
        self.y = y

    def value(self, x):
        return 0.5 * (x - self.y).square().flatten(1).sum(dim=1)


class TestDualResidual:
    def test_of_every_iteration_is_in_the_history_and_costs_no_evaluation(self, sample):
        problem, x0 = sample
        mirror = shaken(Counting(2, 8, 1).double())
        result = lmd.run(MirrorDescent(mirror, 0.01), problem, x0, iterations=6)
        assert mirror.calls == {"to_dual": 6, "to_primal": 6}
        residual = result.history.diagnostics["dual_residual"]
        assert residual.shape == (7, 5)
        assert bool(residual[0].isnan().all())  # x_0 was made from no target
        x = x0
        with torch.no_grad():
            for k in range(5):
                target = mirror.to_dual(x) - 0.01 * problem.subgradient(x)
                x = mirror.to_primal(target)
                assert_close(residual[k + 1], norm_of(mirror.to_dual(x) - target, "l2"))
        assert bool((residual[1:6] > 1e-3).all()), "an inverse off by nothing would show nothing"

    def test_of_a_lazy_run_is_not_known_and_not_claimed(self, sample):
        problem, x0 = sample
        mirror = shaken(Counting(2, 8, 1).double())
        result = lmd.run(LazyMirrorDescent(mirror, 0.01), problem, x0, iterations=6)
        assert mirror.calls == {"to_dual": 1, "to_primal": 6}
        assert "dual_residual" not in result.history.diagnostics

    def test_is_a_diagnostic_without_a_graph(self, sample):
        problem, x0 = sample
        solver = MirrorDescent(DensePair(2, 8, 1).double(), 0.01)
        state = solver.init(problem, x0)
        for _ in range(2):
            state = solver.step(problem, state)
        assert state.x.requires_grad and not state.diagnostics["dual_residual"].requires_grad


class TestLazy:
    def test_accumulates_in_the_dual(self, sample):
        problem, x0 = sample
        mirror = shaken(DensePair(2, 8, 1, scale=2.0).double())
        steps = LearnedSteps(4, 0.02).double()
        with torch.no_grad():
            steps.sizes.copy_(torch.tensor([0.01, 0.03, 0.02, 0.05]))
            x, y = x0, mirror.to_dual(x0)
            for k in range(4):
                y = y - float(steps.sizes[k]) * problem.subgradient(x)
                x = mirror.to_primal(y)
        result = lmd.run(LazyMirrorDescent(mirror, steps), problem, x0)
        assert_close(result.x, x)
        assert result.iterations.tolist() == [4] * 5

    def test_differs_from_re_encoding_where_the_inverse_is_off(self, sample):
        problem, x0 = sample
        mirror = shaken(DensePair(2, 8, 1).double())
        lazy, encoding = (lmd.run(kind(mirror, 0.01), problem, x0, 8).x for kind in (LazyMirrorDescent, MirrorDescent))
        assert float((lazy - encoding).abs().min()) > 1e-3

    def test_with_a_refined_inverse_both_are_the_same(self, sample):
        problem, x0 = sample

        class Refined(DensePair):
            def to_primal(self, y, tolerance=None):
                return super().to_primal(y, tolerance=1e-10)

        mirror = shaken(Refined(2, 8, 1).double())
        lazy, encoding = (lmd.run(kind(mirror, 0.01), problem, x0, 8).x for kind in (LazyMirrorDescent, MirrorDescent))
        assert_close(lazy, encoding, rtol=1e-8, atol=1e-8)

    def test_shares_the_step(self):
        assert LazyMirrorDescent.step is MirrorDescent.step


class TestLearning:
    @pytest.mark.parametrize("kind", [MirrorDescent, LazyMirrorDescent])
    @pytest.mark.parametrize("activation", ["smooth", "leaky"])
    @pytest.mark.parametrize("backward", ["residual", "gradient"])
    def test_every_parameter_is_reached_through_the_unrolled_step(self, sample, kind, activation, backward):
        problem, x0 = sample
        mirror = shaken(DensePair(2, 8, 1, backward, activation=activation).double())
        solver = kind(mirror, LearnedSteps(3).double())
        state = solver.init(problem, x0)
        for _ in range(3):
            state = solver.step(problem, state)
        problem.value(state.x).sum().backward()
        assert [name for name, p in solver.named_parameters() if p.grad is None or not bool(p.grad.any())] == []

    def test_a_few_updates_lower_the_loss(self):
        generator = torch.Generator().manual_seed(0)
        problem = Pull(torch.rand(4, 1, 6, 6, generator=generator))
        x0 = torch.rand(4, 1, 6, 6, generator=generator)
        solver = LearnedMirrorDescent(ConvPair(1, 4, 1), iterations=4, initial_step=0.05)
        optimiser = torch.optim.Adam(solver.parameters(), lr=0.02)
        losses = []
        for _ in range(12):
            optimiser.zero_grad()
            state = solver.init(problem, x0)
            for _ in range(4):
                state = solver.step(problem, state)
            loss = problem.value(state.x).mean() + solver.mirror.inconsistency(x0).mean()
            loss.backward()
            optimiser.step()
            for module in solver.modules():
                if callable(constrain := getattr(module, "constrain_", None)):
                    constrain()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.7 * losses[0]

    def test_fixed_steps_use_the_learned_mirror(self, sample):
        problem, x0 = sample
        solver = LearnedMirrorDescent(shaken(DensePair(2, 8, 1).double()), iterations=3)
        fixed = lmd.run(solver.with_steps(0.02), problem, x0, 3)
        alone = lmd.run(MirrorDescent(solver.mirror, 0.02), problem, x0, 3)
        assert_close(fixed.x, alone.x)


@pytest.mark.parametrize("kind", [MirrorDescent, LazyMirrorDescent])
def test_a_saved_solver_is_the_solver(kind, sample, tmp_path):
    problem, x0 = sample
    solver = kind(shaken(DensePair(2, 8, 1, "gradient", scale=3.0).double()), LearnedSteps(3).double())
    loaded = lmd.solvers.load(lmd.solvers.save(solver, tmp_path))
    assert type(loaded) is kind
    assert torch.equal(lmd.run(loaded, problem, x0).x, lmd.run(solver, problem, x0).x)
