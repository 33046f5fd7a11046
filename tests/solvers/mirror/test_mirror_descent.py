import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import DomainError, InputError
from lmd.mirrors import DiagonalQuadratic, Entropic, Euclidean, EuclideanSimplex, OneLayer, Quadratic
from lmd.mirrors.base import norm_of
from lmd.problems import SimplexFamily
from lmd.solvers import GradientDescent, LearnedMirrorDescent, LearnedSteps, MirrorDescent
from lmd.solvers.steps import FixedSteps


def test_with_the_euclidean_mirror_it_is_gradient_descent(least_squares):
    problem, x0 = least_squares
    assert_close(
        lmd.run(MirrorDescent(Euclidean(), 0.03), problem, x0, iterations=9).history.values,
        lmd.run(GradientDescent(0.03), problem, x0, iterations=9).history.values,
    )


def test_with_the_euclidean_mirror_of_the_simplex_it_is_projected_gradient():
    problem, x0 = SimplexFamily("least-squares", 4).sample(7, torch.Generator().manual_seed(0))
    assert_close(
        lmd.run(MirrorDescent(EuclideanSimplex(), 0.4), problem, x0, iterations=9).x,
        lmd.run(GradientDescent(0.4), problem, x0, iterations=9).x,
    )


def test_with_the_matrix_of_the_problem_it_goes_straight_to_the_minimiser(least_squares):
    """x_{k+1} = x_k - 2 t (x_k - x*): section 4.1 of the paper, for ||Wx - b||^2."""
    problem, x0 = least_squares
    mirror = Quadratic.from_matrix(problem.W.T @ problem.W)
    result = lmd.run(MirrorDescent(mirror, 0.1), problem, x0, iterations=10)
    assert_close(result.x, problem.minimiser() + 0.8**10 * (x0 - problem.minimiser()))


def test_entropic_descent_on_kl_against_its_closed_form():
    """log x_k = (1 - t)^k log x_0 + (1 - (1 - t)^k) log y up to the sum."""
    problem, x0 = SimplexFamily("kl", 5).sample(7, torch.Generator().manual_seed(0))
    result = lmd.run(MirrorDescent(Entropic(), 0.4), problem, x0, iterations=10)
    assert_close(result.x, torch.softmax(0.6**10 * x0.log() + (1 - 0.6**10) * problem.y.log(), dim=1))


def test_entropic_descent_goes_on_below_the_rounding_of_one():
    problem, x0 = SimplexFamily("kl", 3).sample(50, torch.Generator().manual_seed(0))
    result = lmd.run(MirrorDescent(Entropic(), 0.4), problem, x0, iterations=50)
    assert bool((result.values < 1e-18).all()) and bool((result.values >= 0).all())


def test_the_regret_bound_of_the_theorem():
    """min_k f(x_k) - f* <= (B(x*, x_0) + 1/(2 sigma) sum t_k^2 ||g_k||_*^2) / sum t_k: Beck and Teboulle 2003."""
    problem, x0 = SimplexFamily("least-squares", 6).sample(7, torch.Generator().manual_seed(0))
    mirror, t = Entropic(), 0.5
    solver, gradients = MirrorDescent(mirror, t), []
    state = solver.init(problem, x0)
    best = problem.value(x0)
    for _ in range(20):
        gradients.append(norm_of(problem.subgradient(state.x), "linf").square())
        state = solver.step(problem, state)
        best = torch.minimum(best, problem.value(state.x))
    bound = (mirror.divergence(problem.minimiser(), x0) + t**2 / 2 * torch.stack(gradients).sum(dim=0)) / (20 * t)
    assert bool((best - problem.minimum() <= bound).all())


class Sloppy(DiagonalQuadratic):
    """An inverse that is off by a known amount."""

    is_exact = False

    def to_primal(self, y, tolerance=None):
        return super().to_primal(y) + 0.25


class TestDualResidual:
    def test_of_an_inexact_mirror_is_in_the_history(self, least_squares):
        problem, x0 = least_squares
        mirror = Sloppy(2, diagonal=torch.tensor([2.0, 4.0], dtype=torch.float64))
        history = lmd.run(MirrorDescent(mirror, 0.01), problem, x0, iterations=3).history
        residual = history.diagnostics["dual_residual"]
        assert residual.shape == (4, 7)
        assert bool(residual[[0, 3]].isnan().all())  # nothing was encoded before x_0, and x_3 was not encoded
        assert_close(residual[1:3], torch.full((2, 7), 0.25 * 20**0.5, dtype=torch.float64))

    def test_of_an_exact_mirror_is_not(self, least_squares):
        problem, x0 = least_squares
        result = lmd.run(MirrorDescent(Quadratic(2).double(), 0.01), problem, x0, iterations=3)
        assert "dual_residual" not in result.history.diagnostics


@pytest.mark.parametrize(("mirror", "norm"), [(EuclideanSimplex(), "l2"), (Entropic(), "linf")])
def test_steps_and_subgradient_norms_are_in_the_history(mirror, norm):
    problem, x0 = SimplexFamily("least-squares", 3).sample(4, torch.Generator().manual_seed(0))
    solver = MirrorDescent(mirror, LearnedSteps(2, 0.05).double())
    with torch.no_grad():
        solver.steps.sizes.copy_(torch.tensor([0.02, 0.07]))
    first = lmd.run(solver, problem, x0, iterations=1)
    seen = lmd.run(solver, problem, x0, iterations=2).history.diagnostics
    assert_close(seen["step_size"][:2], torch.tensor([[0.02] * 4, [0.07] * 4], dtype=torch.float64))
    assert_close(seen["subgradient_norm"][0], norm_of(problem.subgradient(x0), norm))
    assert_close(seen["subgradient_norm"][1], norm_of(problem.subgradient(first.x), norm))
    assert bool(seen["step_size"][2].isnan().all()) and bool(seen["subgradient_norm"][2].isnan().all())


class TestLearnedMirrorDescent:
    def test_takes_its_learned_steps_in_order(self, least_squares):
        problem, x0 = least_squares
        solver = LearnedMirrorDescent(Euclidean(), iterations=3, extension="max")
        sizes = [0.02, 0.05, 0.01]
        with torch.no_grad():
            solver.steps.sizes.copy_(torch.tensor(sizes))
        x = x0
        for size in [*sizes, 0.05, 0.05]:
            x = x - size * problem.subgradient(x)
        assert_close(lmd.run(solver, problem, x0, iterations=5).x, x, rtol=1e-6, atol=1e-6)

    def test_runs_as_long_as_it_was_trained_for(self, least_squares):
        problem, x0 = least_squares
        solver = LearnedMirrorDescent(Euclidean(), iterations=4)
        assert solver.horizon == 4
        assert lmd.run(solver, problem, x0).iterations.tolist() == [4] * 7

    def test_with_steps_keeps_the_mirror(self):
        solver = LearnedMirrorDescent(Quadratic(2), iterations=4)
        fixed = solver.with_steps(0.3)
        assert type(fixed) is MirrorDescent and fixed.mirror is solver.mirror
        assert isinstance(fixed.steps, FixedSteps) and fixed.steps.size == 0.3
        assert fixed.horizon is None
        assert solver.with_steps(LearnedSteps(6)).horizon == 6

    def test_the_interval_is_an_argument(self):
        solver = LearnedMirrorDescent(Euclidean(), iterations=2, initial_step=0.3, interval=(0.2, 0.4))
        with torch.no_grad():
            solver.steps.sizes.copy_(torch.tensor([0.1, 0.9]))
        solver.steps.constrain_()
        assert_close(solver.steps.sizes.detach(), torch.tensor([0.2, 0.4]))

    def test_every_parameter_is_learned_through_the_unrolled_step(self, least_squares):
        problem, x0 = least_squares
        solver = LearnedMirrorDescent(OneLayer(2), iterations=3, initial_step=0.01).double()
        state = solver.init(problem, x0 * 0.1)
        for _ in range(3):
            state = solver.step(problem, state)
        problem.value(state.x).sum().backward()
        assert {name for name, p in solver.named_parameters() if p.grad is not None and bool(p.grad.any())} == {
            "mirror.lower",
            "mirror.upper",
            "mirror.weight",
            "steps.sizes",
        }

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"iterations": 0}, "iterations: got 0"),
            ({"interval": (0.2, 0.1)}, r"interval: got \(0.2, 0.1\)"),
            ({"initial_step": 0.5}, "initial: got 0.5, expected a step inside the interval"),
            ({"extension": "lats"}, r"extension: got 'lats', expected one of .*\(did you mean last\?\)"),
        ],
    )
    def test_bad_arguments(self, arguments, words):
        with pytest.raises(InputError, match="^" + words):
            LearnedMirrorDescent(Euclidean(), **arguments)


class TestBadStarts:
    def test_no_mirror(self):
        with pytest.raises(InputError, match=r"^mirror: got str, expected an lmd\.mirrors\.Mirror$"):
            MirrorDescent("entropic")

    def test_a_start_outside_the_domain(self):
        with pytest.raises(
            DomainError, match=r"^x0: got instance 1, which is 0.5 outside, expected a point of the simplex"
        ):
            lmd.run(MirrorDescent(Entropic()), lambda x: x.sum(dim=1), torch.tensor([[0.5, 0.5], [0.5, 0.0]]))

    @pytest.mark.parametrize(
        "mirror", [Quadratic(3), DiagonalQuadratic(3), OneLayer(3)], ids=lambda m: type(m).__name__
    )
    def test_a_start_of_another_width_or_dtype(self, mirror):
        with pytest.raises(InputError, match=r"^x0: got shape \(2, 4\), expected shape \(B, 3\)$"):
            lmd.run(MirrorDescent(mirror), lambda x: x.sum(dim=1), torch.zeros(2, 4))
        with pytest.raises(
            InputError, match=r"^x0: got torch.float64 on cpu, expected torch.float32 on cpu, as the mirror is"
        ):
            lmd.run(MirrorDescent(mirror), lambda x: x.sum(dim=1), torch.zeros(2, 3).double())
