"""The wider family on exact mirrors, against closed forms written out here."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.mirrors import DiagonalQuadratic, Entropic, Euclidean, EuclideanBox, EuclideanSimplex, OneLayer, Quadratic
from lmd.problems import SVM, LeastSquares, LinearClassifier, PenalisedProblem, SimplexFamily
from lmd.solvers import (
    AcceleratedMirrorDescent,
    AcceleratedStochasticMirrorDescent,
    GradientDescent,
    LazyMirrorDescent,
    LearnedSteps,
    MirrorDescent,
    ProximalMirrorDescent,
    Stochastic,
)
from lmd.solvers.mirror.mirror_descent import proximal_step
from lmd.solvers.steps import FixedSteps
from lmd.terms import L1, NegativeEntropy

ROUNDING = {"rtol": 1e-12, "atol": 1e-12}


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def iterates(solver, problem, x0, count):
    """x_0, ..., x_count."""
    state, points = solver.init(problem, x0), [x0]
    for _ in range(count):
        state = solver.step(problem, state)
        points.append(state.x)
    return points


class TestLazy:
    @pytest.mark.parametrize("steps", [0.02, FixedSteps(0.05, 0.5)], ids=["constant", "decaying"])
    def test_is_plain_dual_averaging(self, least_squares, steps):
        """x_{k+1} = argmin_x <sum_j t_j g_j, x> + 1/2 ||x - x_0||^2, all gradients summed up at each step anew."""
        problem, x0 = least_squares
        rule = lmd.solvers.steps.as_steps(steps)
        points = [x0]
        for _ in range(30):
            total = sum(rule(j) * problem.subgradient(x) for j, x in enumerate(points))
            points.append(x0 - total)
        for found, expected in zip(
            iterates(LazyMirrorDescent(Euclidean(), steps), problem, x0, 30), points, strict=True
        ):
            assert_close(found, expected, **ROUNDING)

    def test_on_the_simplex_it_is_multiplicative_weights(self):
        problem, x0 = SimplexFamily("least-squares", 5).sample(7, torch.Generator().manual_seed(0))
        x, log = x0, x0.log()
        for _ in range(20):
            log = log - 0.3 * problem.subgradient(x)
            x = torch.softmax(log, dim=1)
        assert_close(lmd.run(LazyMirrorDescent(Entropic(), 0.3), problem, x0, 20).x, x, **ROUNDING)

    @pytest.mark.parametrize("mirror", [Quadratic.from_matrix(torch.eye(2).double() + 1), OneLayer(2, alpha=0.0)])
    def test_on_the_whole_space_an_exact_mirror_makes_no_difference(self, least_squares, mirror):
        problem, x0 = least_squares
        lazy, eager = (
            lmd.run(kind(mirror.double(), 0.01), problem, x0 / 10, 10) for kind in (LazyMirrorDescent, MirrorDescent)
        )
        assert_close(lazy.x, eager.x)
        assert "dual_residual" not in lazy.history.diagnostics

    def test_on_a_box_it_remembers_what_was_clipped(self):
        """Dual averaging and mirror descent part ways where the projection is active."""
        problem = LeastSquares(torch.eye(1).double(), torch.tensor([[5.0]]).double())
        lazy = LazyMirrorDescent(EuclideanBox(0, 1), 0.1)
        state = lazy.init(problem, torch.tensor([[0.5]]).double())
        for _ in range(3):
            state = lazy.step(problem, state)
        assert state.x.item() == 1 and state.target.item() > 2


class TestAccelerated:
    def test_is_accelerated_dual_averaging(self, least_squares):
        """y_k = x_0 - sum_j (j t_j / r) g_j, summed up at each step anew, and three sequences by the formulas."""
        problem, x0 = least_squares
        steps, r = FixedSteps(0.04, 0.5), 3
        gradients, x, points = [], x0, [x0]
        for k in range(30):
            z = x0 - sum((j * steps(j) / r) * g for j, g in enumerate(gradients))
            lam = r / (r + k)
            v = lam * z + (1 - lam) * x
            gradients.append(problem.subgradient(v))
            x = v - steps(k) * gradients[-1]
            points.append(x)
        solver = AcceleratedMirrorDescent(Euclidean(), steps)
        for found, expected in zip(iterates(solver, problem, x0, 30), points, strict=True):
            assert_close(found, expected, **ROUNDING)

    def test_is_faster_than_mirror_descent_where_the_problem_is_flat(self):
        problem = LeastSquares(torch.diag(torch.tensor([1.0, 0.06])).double(), torch.zeros(1, 2).double())
        x0 = torch.tensor([[1.0, 10.0]]).double()
        fast, slow = (
            lmd.run(kind(Euclidean(), 0.4), problem, x0, 150).values
            for kind in (AcceleratedMirrorDescent, MirrorDescent)
        )
        assert float(fast) < 0.1 * float(slow)

    def test_its_value_falls_as_the_square_of_the_iterations(self):
        """f(x_k) - f* <= C ||x_0 - x*||^2 / (t k^2) on a badly conditioned problem, from iteration 10 to 1000."""
        W = torch.diag(torch.logspace(0, -4, 20, dtype=torch.float64))
        problem = LeastSquares(W, torch.zeros(3, 20, dtype=torch.float64))
        x0 = random(3, 20)
        values = lmd.run(AcceleratedMirrorDescent(Euclidean(), 0.25), problem, x0, 1000).history.values
        k = torch.arange(10, 1001, dtype=torch.float64)
        allowed = 4 * x0.square().sum(dim=1) / (0.25 * k[:, None] ** 2)
        assert bool((values[10:] <= allowed).all())

    def test_stays_on_the_simplex(self):
        problem, x0 = SimplexFamily("least-squares", 4).sample(7, torch.Generator().manual_seed(0))
        for point in iterates(AcceleratedMirrorDescent(Entropic(), 0.4), problem, x0, 50):
            problem.domain.check("x", point)
        assert bool((problem.value(point) < 1e-4).all())

    def test_no_mirror(self):
        with pytest.raises(InputError, match=r"^mirror: got str"):
            AcceleratedStochasticMirrorDescent("entropic")


def test_accelerated_stochastic_by_its_formulas(least_squares):
    """A_0 = 1/2, A_{k+1} = (k+1)(k+2)/2, tau_k = (A_{k+1} - A_k)/A_k, s_k = (k+1)^{3/2}, with the Euclidean mirror."""
    problem, x0 = least_squares
    A = [0.5, *((k + 1) * (k + 2) / 2 for k in range(30))]
    x, y, points = x0, x0, [x0]
    for k, (now, after) in enumerate(itertools.pairwise(A)):
        tau, s = (after - now) / now, (k + 1) ** 1.5
        y = y - ((after - now) / s) * 0.05 * problem.subgradient(x)
        x = tau / (tau + 1) * y + x / (tau + 1)
        points.append(x)
    solver = AcceleratedStochasticMirrorDescent(Euclidean(), 0.05)
    for found, expected in zip(iterates(solver, problem, x0, 30), points, strict=True):
        assert_close(found, expected, **ROUNDING)


def svm():
    labels = torch.tensor([[1, -1, 1, -1, -1, 1], [1, 1, 1, -1, -1, -1]])
    return SVM(random(2, 6, 3), labels, C=0.7, starts=2), random(4, 4, seed=1)


def classifier():
    labels = torch.tensor([[0, 1, 2, 2, 1, 0], [2, 2, 1, 0, 0, 1]])
    return LinearClassifier(random(2, 6, 3), labels, classes=3, ridge=0.1, starts=2), random(4, 9, seed=1)


def squares():
    return LeastSquares(random(6, 3), random(4, 6, seed=1)), random(4, 3, seed=2)


def penalised():
    problem, x0 = squares()
    return PenalisedProblem(problem, L1(0.3)), x0


@pytest.mark.parametrize("make", [svm, classifier, squares, penalised])
class TestMinibatches:
    def test_values_and_subgradients_are_right_on_average(self, make):
        problem, x0 = make()
        parts = [problem.minibatch(torch.tensor(pair)) for pair in itertools.combinations(range(6), 2)]
        assert problem.terms == 6
        assert_close(torch.stack([part.value(x0) for part in parts]).mean(dim=0), problem.value(x0))
        assert_close(torch.stack([part.subgradient(x0) for part in parts]).mean(dim=0), problem.subgradient(x0))

    def test_one_minibatch_differs(self, make):
        problem, x0 = make()
        part = problem.minibatch(torch.tensor([0, 3]))
        assert not torch.allclose(part.subgradient(x0), problem.subgradient(x0))

    def test_all_terms_are_the_problem(self, make):
        problem, x0 = make()
        assert_close(problem.minibatch(torch.arange(6)).subgradient(x0), problem.subgradient(x0))

    def test_a_minibatch_of_some_instances(self, make):
        problem, x0 = make()
        indices = torch.tensor([1, 4, 5])
        alone = problem.select(2).minibatch(indices)
        assert_close(alone.subgradient(x0[2:3]), problem.minibatch(indices).subgradient(x0)[2:3])


class TestStochastic:
    def test_every_step_sees_other_terms_and_all_of_them_are_seen(self):
        problem, x0 = squares()
        solver = Stochastic(GradientDescent(0.01), 2)
        drawn = [solver.draw(problem, lmd.solvers.State(x0, k)).tolist() for k in range(60)]
        assert {index for pair in drawn for index in pair} == set(range(6))
        assert all(len(set(pair)) == 2 for pair in drawn) and len({tuple(sorted(pair)) for pair in drawn}) > 10

    def test_steps_use_the_minibatch(self):
        problem, x0 = squares()
        solver = Stochastic(GradientDescent(0.01), 2, seed=4)
        x = x0
        for k, found in enumerate(iterates(solver, problem, x0, 3)[1:]):
            part = problem.minibatch(solver.draw(problem, lmd.solvers.State(x, k)))
            x = x - 0.01 * part.subgradient(x)
            assert_close(found, x)

    def test_runs_repeat_and_seeds_differ(self):
        problem, x0 = svm()
        first, again = (lmd.run(Stochastic(GradientDescent(0.01), 2), problem, x0, 10).x for _ in range(2))
        other = lmd.run(Stochastic(GradientDescent(0.01), 2, seed=1), problem, x0, 10).x
        assert torch.equal(first, again) and not torch.allclose(first, other)

    def test_an_instance_of_a_batch_is_the_instance_alone(self):
        problem, x0 = svm()
        solver = Stochastic(LazyMirrorDescent(Euclidean(), 0.01), 3)
        together = lmd.run(solver, problem, x0, 10).x
        alone = lmd.run(solver, problem.select(3), x0[3:], 10).x
        assert_close(alone, together[3:])

    @pytest.mark.parametrize(
        "inner",
        [
            LazyMirrorDescent(Euclidean(), FixedSteps(0.3, 0.7)),
            AcceleratedStochasticMirrorDescent(Euclidean(), 0.3),
        ],
        ids=["LSMD", "LASMD"],
    )
    def test_approaches_the_minimum(self, inner):
        problem, x0 = classifier()
        result = lmd.run(Stochastic(inner, 2), problem, x0, 2000)
        minimum = lmd.guarantees.minimum(problem)
        assert bool((result.values - minimum < 0.1 * (problem.value(x0) - minimum)).all())

    def test_counts_minibatch_subgradients_apart(self):
        problem, x0 = svm()
        result = lmd.run(Stochastic(LazyMirrorDescent(Euclidean(), 0.01), 2), problem, x0, 5)
        counts = {name: count.tolist() for name, count in result.evaluations.items()}
        assert counts == {"to_dual": [1] * 4, "minibatch_subgradient": [5] * 4, "to_primal": [5] * 4}

    def test_needs_a_sum_of_enough_terms(self):
        problem, x0 = squares()
        with pytest.raises(CapabilityError, match="which has no terms, expected a problem with a terms"):
            lmd.run(Stochastic(GradientDescent(0.1), 2), lambda x: x.square().sum(dim=1), x0)
        with pytest.raises(InputError, match=r"^minibatch: got 7, expected at most 6, the number of"):
            lmd.run(Stochastic(GradientDescent(0.1), 7), problem, x0)
        with pytest.raises(InputError, match=r"^solver: got str"):
            Stochastic("adam", 3)

    def test_survives_saving(self, tmp_path):
        solver = Stochastic(LazyMirrorDescent(Quadratic(3), LearnedSteps(4)), 3, seed=2)
        loaded = lmd.solvers.load(lmd.solvers.save(solver, tmp_path))
        problem, x0 = squares()
        assert torch.equal(*(lmd.run(each.double(), problem, x0).x for each in (solver, loaded)))


class TestProximal:
    def test_with_the_euclidean_mirror_it_is_iterative_shrinkage(self):
        problem, x0 = penalised()
        x = x0
        for _ in range(20):
            x = x - 0.02 * problem.problem.subgradient(x)
            x = torch.nn.functional.softshrink(x, 0.02 * 0.3)
        assert_close(lmd.run(ProximalMirrorDescent(Euclidean(), 0.02), problem, x0, 20).x, x, **ROUNDING)

    @pytest.mark.parametrize(
        ("mirror", "penalty"),
        [
            (Euclidean(), L1(0.8)),
            (EuclideanBox(-0.5, 1.0), L1(0.8)),
            (DiagonalQuadratic(4, diagonal=torch.tensor([0.5, 1, 2, 3.0]).double()), L1(0.8)),
            (Entropic(), NegativeEntropy(0.8)),
            (Entropic(), L1(0.8)),
            (EuclideanSimplex(), L1(0.8)),
        ],
        ids=lambda item: type(item).__name__,
    )
    def test_the_map_minimises_what_it_should(self, mirror, penalty):
        """Psi(x) - <y, x> + t g(x) at the answer is below its value at 2000 points around it."""
        y, t = random(5, 4), 0.7
        x = proximal_step(mirror, penalty, y, t)

        def objective(x):
            return mirror.potential(x) - (y * x).sum(dim=1) + t * penalty.value(x)

        least = objective(x)
        for size, seed in itertools.product((1e-3, 1e-1, 1.0), range(50)):
            other = x + size * random(5, 4, seed=seed)
            if mirror.domain is not None:
                other = mirror.domain.nearest(other)
            assert bool((objective(other) >= least - 1e-12).all())

    def test_finds_the_sparse_minimiser_of_a_lasso(self):
        b = torch.tensor([[3.0, 0.2, -2.0]]).double()
        problem = PenalisedProblem(LeastSquares(torch.eye(3).double(), b), L1(1.0))
        mirror = DiagonalQuadratic(3, diagonal=torch.tensor([2.0, 4.0, 8.0]).double())
        result = lmd.run(ProximalMirrorDescent(mirror, 1.0), problem, torch.ones(1, 3).double(), 60)
        assert_close(result.x, torch.tensor([[2.5, 0.0, -1.5]]).double())
        assert result.x[0, 1] == 0

    def test_entropy_on_the_simplex_against_its_closed_form(self):
        """min <c, x> + w sum x log x has the minimiser softmax(-c / w)."""

        class Linear(lmd.problems.Problem):
            domain = lmd.terms.Simplex()

            def value(self, x):
                return x @ torch.arange(4.0).double()

        problem = PenalisedProblem(Linear(), NegativeEntropy(0.5))
        result = lmd.run(ProximalMirrorDescent(Entropic(), 1.0), problem, torch.full((2, 4), 0.25).double(), 60)
        assert_close(result.x, torch.softmax(-torch.arange(4.0).double() / 0.5, dim=0).expand(2, 4))

    def test_an_unknown_pair_is_refused(self):
        problem, x0 = penalised()
        with pytest.raises(InputError, match=r"^penalty: got L1 with the mirror Quadratic, expected Euclidean or .*L1"):
            lmd.run(ProximalMirrorDescent(Quadratic(3).double(), 0.1), problem, x0)
        with pytest.raises(CapabilityError, match="which has no penalty"):
            lmd.run(ProximalMirrorDescent(Euclidean(), 0.1), problem.problem, x0)


class TestPenalised:
    @pytest.mark.parametrize("penalty", [L1(0.7), NegativeEntropy(0.7)], ids=lambda item: type(item).__name__)
    def test_subgradients_are_those_of_the_value(self, penalty):
        assert isinstance(penalty, lmd.terms.Term)
        x = random(5, 4).abs().requires_grad_()
        (expected,) = torch.autograd.grad(penalty.value(x).sum(), x)
        assert_close(penalty.subgradient(x), expected)

    def test_is_the_sum(self):
        problem, x0 = penalised()
        assert_close(problem.value(x0), problem.problem.value(x0) + 0.3 * x0.abs().sum(dim=1))
        assert problem.batch_size == 4 and problem.domain is None
        assert_close(problem.select(1).value(x0[1:2]), problem.value(x0)[1:2])
        assert_close(problem.strong_convexity, problem.problem.strong_convexity)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LazyMirrorDescent(Quadratic(3).double(), LearnedSteps(4, 0.02).double()),
        lambda: AcceleratedMirrorDescent(Quadratic(3).double(), LearnedSteps(4, 0.02).double()),
        lambda: Stochastic(LazyMirrorDescent(Quadratic(3).double(), LearnedSteps(4, 0.02).double()), 2),
        lambda: Stochastic(
            AcceleratedStochasticMirrorDescent(Quadratic(3).double(), LearnedSteps(4, 0.02).double()), 2
        ),
    ],
    ids=["lazy", "LAMD", "LSMD", "LASMD"],
)
def test_they_learn(make):
    """A short training lowers the held-out values of the trained iterations."""
    W = torch.diag(torch.tensor([1.0, 0.5, 0.2])).double()
    family = lmd.problems.LeastSquaresFamily(W.repeat(2, 1))
    solver = make()
    result = lmd.train(solver, family, updates=60, batch=64, learning_rate=0.03, validate_every=20, progress=False)
    problem, x0 = family.sample(256, torch.Generator().manual_seed(99))
    trained, fresh = (
        lmd.run(each, problem, x0).history.values[1:].sum(dim=0).mean() for each in (result.solver, make())
    )
    assert float(trained) < 0.9 * float(fresh)
    assert solver.horizon == 4


def test_a_proximal_step_does_not_round_its_step_to_the_default_dtype():
    y = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64)
    found = proximal_step(Entropic(), NegativeEntropy(0.3), y, 0.1)
    assert_close(found, (y / (1 + 0.1 * 0.3)).softmax(dim=1), rtol=1e-14, atol=0)
