"""Certificates hold: over random problems and mirrors none is below the true gap; and they say something."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.guarantees import certify
from lmd.guarantees.certify import (
    Record,
    _regret_constants,
    best_of,
    divergence_bound,
    duality_certificate,
    regret_bound,
    regret_certificate,
    relative_certificate,
    subgradient_certificate,
)
from lmd.mirrors import Entropic, Euclidean, EuclideanBox, EuclideanSimplex, OneLayer, Quadratic
from lmd.mirrors.potentials import Matrices, PotentialNetwork
from lmd.problems import LeastSquares, Problem, SimplexFamily, TVDenoising
from lmd.problems.simplex import SquaredDistance
from lmd.solvers import (
    FGP,
    PDHG,
    BestSoFar,
    GradientDescent,
    LazyMirrorDescent,
    LearnedMirrorDescent,
    MirrorDescent,
    Stochastic,
)
from lmd.solvers.result import Certificate
from lmd.terms import Box, Simplex

F64 = torch.float64


def check(certificate, gap, what=""):
    assert certificate.bound.shape == gap.shape
    assert bool((certificate.bound >= gap).all()), f"{what} {certificate.theorem}: {certificate.bound} below {gap}"


def run_at_random(generator, make_problem, make_mirror, *, batch=8, kind=MirrorDescent, at_solution=False):
    """A run of 1 to 30 iterations with a step around the largest that theory allows, and what is known about it."""
    dimension = 2 if float(torch.rand((), generator=generator)) < 0.5 else 5
    problem = make_problem(generator, batch, dimension)
    mirror = make_mirror(generator, dimension)
    start = torch.randn(batch, dimension, dtype=F64, generator=generator)
    start = problem.minimiser().clone() if at_solution else start * 10 ** float(torch.randn((), generator=generator))
    curvature = 5.0 if problem.smoothness is None else float(problem.smoothness)
    share = 0.05 + 1.2 * float(torch.rand((), generator=generator))
    step = share * max(float(mirror.strong_convexity), 0.05) / curvature
    iterations = int(torch.randint(1, 31, (), generator=generator))
    result = lmd.run(kind(mirror, step), problem, start, iterations)
    return problem, mirror, result


def all_certificates(problem, mirror, result):
    """Every theorem, with the divergence bounded and with the divergence known."""
    record = Record.of(result)
    with torch.no_grad():
        divergence = mirror.divergence(problem.minimiser(), result.start).clamp(min=0)
    return {
        "the best": result.certificate,
        "regret": regret_certificate(record),
        "regret, known divergence": regret_certificate(record, divergence),
        "relative": relative_certificate(record),
        "relative, known divergence": relative_certificate(record, divergence=divergence),
        "subgradient": subgradient_certificate(record),
    }


class TestNeverBelowTheTrueGap:
    SEEDS = 6
    """Times 3 problems, 8 mirrors, 2 starts and batches of 8: 2304 cases, each with six certificates."""

    @pytest.mark.parametrize("at_solution", [False, True], ids=["anywhere", "at the solution"])
    def test_of_mirror_descent(self, every_problem, every_mirror, at_solution):
        for seed in range(self.SEEDS):
            generator = torch.Generator().manual_seed(seed)
            case = run_at_random(generator, every_problem, every_mirror, at_solution=at_solution)
            problem, _, result = case
            gap = result.values - problem.minimum()
            for name, certificate in all_certificates(*case).items():
                check(certificate, gap, f"seed {seed}, {name}:")

    @pytest.mark.parametrize("objective", ["kl", "least-squares"])
    @pytest.mark.parametrize("mirror", [Entropic(), EuclideanSimplex()], ids=lambda m: type(m).__name__)
    @pytest.mark.parametrize("kind", [MirrorDescent, LazyMirrorDescent])
    def test_on_the_simplex(self, objective, mirror, kind):
        for seed in range(5):
            problem, x0 = SimplexFamily(objective, 2 + seed).sample(16, torch.Generator().manual_seed(seed))
            result = lmd.run(kind(mirror, 0.3), problem, x0, 5 * seed + 5)
            gap = result.values - problem.minimum()
            for name, certificate in all_certificates(problem, mirror, result).items():
                check(certificate, gap, name)
            assert bool(regret_certificate(Record.of(result)).proven.all())

    def test_in_float32(self, problems):
        for seed, make in enumerate(problems.values()):
            problem = make(torch.Generator().manual_seed(seed), 8, 4)
            exact = problem.minimum()
            for name in (*problem.batched, *(n for n in ("W", "mu", "weights", "scales") if hasattr(problem, n))):
                setattr(problem, name, getattr(problem, name).float())
            result = lmd.run(MirrorDescent(Euclidean(), 0.05), problem, torch.randn(8, 4), 40)
            check(result.certificate, result.values.double() - exact)

    def test_of_a_wrapped_solver_and_of_instances_that_stop_or_fail(self):
        problem = LeastSquares(torch.eye(2, dtype=F64), torch.zeros(3, 2, dtype=F64))
        x0 = torch.tensor([[1.0, 1.0], [4.0, 0.0], [1e-9, 0.0]], dtype=F64)
        wrapped = lmd.run(BestSoFar(MirrorDescent(Euclidean(), 0.9)), problem, x0, 10)
        stopped = lmd.run(MirrorDescent(Euclidean(), 0.1), problem, x0, 10, target_value=0.5)
        failed = lmd.run(MirrorDescent(Euclidean(), 50.0), problem, x0, 60)
        assert any(status.failed for status in failed.status)
        for result in (wrapped, stopped, failed):
            for name, certificate in all_certificates(problem, Euclidean(), result).items():
                check(certificate, result.values, name)

    def test_each_step_of_the_regret_bound(self, every_problem, every_mirror):
        """t (f(x_k) - f*) + B(x*, x_{k+1}) - B(x*, x_k) is at most what the bound adds in step k: much sharper than
        the sum, as nothing of one step can make up for another.
        """
        for seed in range(self.SEEDS):
            generator = torch.Generator().manual_seed(seed)
            problem, mirror, result = run_at_random(generator, every_problem, every_mirror, at_solution=seed % 2 == 1)
            record, solution = Record.of(result), problem.minimiser()
            bound = regret_bound(record, mirror, _regret_constants(record, mirror, 0.0))
            added = bound.diff(dim=0, prepend=torch.zeros_like(bound[:1]))
            state, points = result.solver.init(problem, result.start), [result.start]
            for _ in range(len(added)):
                state = result.solver.step(problem, state)
                points.append(state.x)
            with torch.no_grad():
                divergences = torch.stack([mirror.divergence(solution, point) for point in points])
            left = record.steps * (record.values[:-1] - problem.minimum()) + divergences.diff(dim=0)
            known = torch.isfinite(added)
            slack = 1e-10 * (1 + divergences[1:] + divergences[:-1])
            assert bool((left <= added + slack)[known].all())
            assert bool(known[0].all()) or len(added) == 1  # the last residual is unknown, and later ones may overflow


class TestItSaysSomething:
    """Exact mirrors, known divergence, quadratics of condition number up to 10, 50 iterations."""

    @pytest.mark.parametrize("condition", [1.0, 3.0, 10.0])
    @pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
    @pytest.mark.parametrize("kind", ["Euclidean", "problem", "unrelated"])
    def test_the_bound_is_near_the_true_regret(self, condition, share, kind):
        generator = torch.Generator().manual_seed(0)
        basis = torch.linalg.qr(torch.randn(5, 5, dtype=F64, generator=generator)).Q
        curvatures = torch.linspace(1, condition, 5, dtype=F64)
        W = (basis * (curvatures / 2).sqrt()) @ basis.T
        problem = LeastSquares(W, torch.randn(50, 5, dtype=F64, generator=generator) @ W.T)
        other = torch.linalg.qr(torch.randn(5, 5, dtype=F64, generator=generator)).Q
        mirror = {
            "Euclidean": Euclidean(),
            "problem": Quadratic.from_matrix((basis * curvatures) @ basis.T),
            "unrelated": Quadratic.from_matrix((other * torch.linspace(1, 2, 5, dtype=F64)) @ other.T),
        }[kind].requires_grad_(False)
        x0 = torch.randn(50, 5, dtype=F64, generator=generator)
        step = share * float(mirror.strong_convexity / problem.smoothness)
        record = Record.of(lmd.run(MirrorDescent(mirror, step), problem, x0, 50))
        divergence = mirror.divergence(problem.minimiser(), x0)
        bound = regret_bound(record, mirror, _regret_constants(record, mirror, divergence))[-1]
        true = (record.steps * (record.values[:-1] - problem.minimum())).sum(dim=0)
        assert bool((bound >= true).all()) and bool((bound <= 10 * true).all())

    def test_relative_smoothness_gives_a_linear_rate(self):
        """KL(x || y) is 1-smooth and 1-strongly convex relative to the entropy: one step of size 1 solves it."""
        problem, x0 = SimplexFamily("kl", 5).sample(20, torch.Generator().manual_seed(0))
        result = lmd.run(MirrorDescent(Entropic(), 0.5), problem, x0, 30)
        blind = relative_certificate(Record.of(result))
        certificate = certify(result, relative_smoothness=1.0, relative_strong_convexity=1.0)
        check(certificate, result.values)
        assert bool((certificate.bound < 1e-7).all()) and bool((blind.bound > 1e-3).all())

    def test_an_inexact_mirror_costs_what_its_residuals_cost(self, sloppy_mirror):
        """With an inverse that is off by 1e-4 the bound settles at a floor of that kind, not at the start."""
        problem = LeastSquares(torch.eye(2, dtype=F64), torch.tensor([[1.0, -1.0]], dtype=F64))
        bounds = []
        for offset in (1e-4, 1e-2):
            result = lmd.run(MirrorDescent(sloppy_mirror(offset), 0.4), problem, torch.zeros(1, 2, dtype=F64), 200)
            certificate = relative_certificate(Record.of(result))
            check(certificate, result.values)
            bounds.append(float(certificate.bound))
        assert bounds[0] < 1e-6 and 1e-4 < bounds[1] < 1e-1


class TestDuality:
    @pytest.mark.parametrize("solver", [FGP(), PDHG()], ids=["FGP", "PDHG"])
    def test_the_gap_certifies(self, solver):
        problem = TVDenoising(torch.rand(3, 1, 12, 12, dtype=F64, generator=torch.Generator().manual_seed(0)), 0.2)
        result = lmd.run(solver, problem, iterations=60)
        certificate = duality_certificate(Record.of(result))
        check(certificate, result.values - lmd.guarantees.minimum(problem))
        assert bool((certificate.bound < 0.05 * result.values).all())
        assert_close(certificate.constants["gap"].value, problem.gap(result.x, result.dual))
        assert result.certificate.theorem.startswith("weak duality")

    def test_the_dual_point_is_the_one_an_instance_stopped_at(self):
        problem = TVDenoising(torch.rand(3, 1, 12, 12, dtype=F64, generator=torch.Generator().manual_seed(0)), 0.2)
        short = lmd.run(FGP(), problem, iterations=5)
        target = torch.tensor([float(short.values[0]), 0.0, 0.0], dtype=F64)
        long = lmd.run(FGP(), problem, iterations=20, target_value=target)
        assert long.iterations.tolist() == [5, 20, 20]
        assert torch.equal(long.dual[0], short.dual[0]) and not torch.equal(long.dual[1], short.dual[1])

    def test_needs_a_dual_point(self):
        problem = TVDenoising(torch.rand(1, 1, 8, 8, dtype=F64), 0.2)
        result = lmd.run(GradientDescent(0.1), problem, iterations=3)
        assert result.dual is None
        assert "it needs a problem with a dual" in duality_certificate(Record.of(result)).theorem


class TestSubgradient:
    def test_at_any_answer_of_any_solver(self):
        problem = LeastSquares(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=F64), torch.ones(2, 2, dtype=F64))
        result = lmd.run(GradientDescent(0.05), problem, torch.zeros(2, 2, dtype=F64), 10)
        gradient = problem.subgradient(result.x).square().sum(dim=1)
        assert_close(result.certificate.bound, gradient / (2 * problem.strong_convexity), rtol=1e-9, atol=1e-12)

    def test_on_a_domain_it_looks_no_further_than_the_domain(self):
        """At the constrained minimiser the gradient is not zero, and the bound is."""

        class Boxed(LeastSquares):
            domain = Box(0, 1)

            def minimiser(self):
                return self.b.clamp(0, 1)

        problem = Boxed(torch.eye(2, dtype=F64), torch.tensor([[3.0, 0.5]], dtype=F64))
        result = lmd.run(lmd.solvers.GradientDescent(0.3), problem, torch.zeros(1, 2, dtype=F64), 40)
        assert float(norm := problem.subgradient(result.x).norm()) > 1, norm
        assert_close(result.certificate.bound, torch.zeros(1, dtype=F64), atol=1e-9, rtol=0)
        check(result.certificate, result.values - problem.minimum())


class Leaning(Problem):
    """f(x) = 1e-3 + 1e6 sum (x - z) + ||x - z||^2 / 2 on the simplex, where the slopes do not matter."""

    batched = ("z",)
    domain = Simplex()
    strong_convexity = torch.ones((), dtype=F64)

    def __init__(self, z):
        self.z = z

    def value(self, x):
        return 1e-3 + (1e6 * (x - self.z) + (x - self.z).square() / 2).sum(dim=1)


def test_points_of_a_set_are_rounded():
    z = Simplex().nearest(torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=F64))
    least = torch.tensor([1e-3 + 1e6 * math.fsum([1.0, *(-row).tolist()]) for row in z], dtype=F64)
    result = lmd.run(MirrorDescent(EuclideanSimplex(), 1e-9), Leaning(z), z, 1)
    assert bool((result.certificate.lower_bound <= least).all())


class TestDivergenceBound:
    @pytest.mark.parametrize("mirror", [Entropic(), EuclideanSimplex()], ids=lambda m: type(m).__name__)
    def test_on_the_simplex(self, mirror):
        generator = torch.Generator().manual_seed(0)
        x0 = lmd.problems.simplex.uniform_simplex(40, 5, generator, F64)
        bound = divergence_bound(mirror, x0, None).value
        for _ in range(20):
            x = lmd.problems.simplex.uniform_simplex(40, 5, generator, F64)
            assert bool((mirror.divergence(x, x0) <= bound).all())
        if isinstance(mirror, Entropic):
            assert_close(bound, x0.amin(dim=1).reciprocal().log())

    def test_on_a_box(self):
        x0 = torch.rand(40, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
        corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=F64)] * 3)
        worst = torch.stack([0.5 * (corner - x0).square().sum(dim=1) for corner in corners]).amax(dim=0)
        assert_close(divergence_bound(EuclideanBox(), x0, None).value, worst)

    def test_over_a_ball(self, mirrors):
        for seed, make in enumerate(mirrors.values()):
            generator = torch.Generator().manual_seed(seed)
            mirror = make(generator, 4)
            x0, radius = torch.randn(30, 4, dtype=F64, generator=generator), torch.linspace(0, 3, 30, dtype=F64)
            bound = divergence_bound(mirror, x0, radius)
            for _ in range(30):
                direction = torch.randn(30, 4, dtype=F64, generator=generator)
                x = x0 + radius[:, None] * direction / direction.norm(dim=1, keepdim=True)
                with torch.no_grad():
                    assert bool((mirror.divergence(x, x0) <= bound.value * (1 + 1e-9) + 1e-12).all()), bound.origin

    def test_unknown_is_unknown(self):
        assert divergence_bound(Euclidean(), torch.zeros(1, 2), None) is None
        assert divergence_bound(Entropic(), torch.full((1, 2), 0.5), None) is not None


class TestWhatIsNotProven:
    def run(self, solver, problem=None, **options):
        problem = problem or LeastSquares(torch.eye(2, dtype=F64), torch.ones(2, 2, dtype=F64))
        return Record.of(lmd.run(solver, problem, torch.zeros(2, 2, dtype=F64), 5, **options))

    def nothing(self, certificate, words=""):
        assert not bool(certificate.proven.any()) and bool((certificate.bound == torch.inf).all())
        assert words in certificate.explain() and "Nothing is proven" in certificate.explain()

    def test_without_strong_convexity_of_the_potential(self):
        self.nothing(regret_certificate(self.run(MirrorDescent(OneLayer(2).double(), 0.01))), "strongly convex pot")

    def test_a_network_whose_weights_were_left_negative_proves_nothing(self, pair):
        mirror = pair(2, 0)
        assert float(mirror.strong_convexity) > 0
        with torch.no_grad():
            mirror.network.hidden[0, 0, 0] = -0.1
        assert float(mirror.strong_convexity) == 0
        self.nothing(regret_certificate(self.run(MirrorDescent(mirror, 0.01))))

    def test_after_clipping(self):
        """`OneLayer` calls itself exact, but a clipped target is not where the point came from."""
        record = self.run(MirrorDescent(OneLayer(2, alpha=0.0).double(), 3.0))
        assert bool((record.diagnostics["clipped"][:-1] > 0).any())
        assert bool(record.residuals.isnan().any())

    def test_without_strong_convexity_of_the_problem(self, sloppy_mirror):
        flat = LeastSquares(torch.tensor([[1.0, 1.0]], dtype=F64), torch.ones(2, 1, dtype=F64))
        record = self.run(MirrorDescent(sloppy_mirror(0.01), 0.05), flat)
        self.nothing(subgradient_certificate(record), "needs a strongly convex problem")
        self.nothing(regret_certificate(record, divergence=1.0))
        exact = self.run(MirrorDescent(Euclidean(), 0.1), flat)
        check(regret_certificate(exact, divergence=0.25), exact.value)  # B(x*, 0) for x* = (1/2, 1/2)

    def test_with_steps_beyond_the_relative_smoothness(self):
        record = self.run(MirrorDescent(Euclidean(), 0.6))
        self.nothing(relative_certificate(record))
        assert bool(relative_certificate(self.run(MirrorDescent(Euclidean(), 0.5))).proven.all())

    def test_with_a_problem_and_a_mirror_of_different_domains(self):
        """Such a run is refused; but a record can be put together by hand."""
        problem = SquaredDistance(torch.tensor([[0.5, 0.5], [1.0, 0.0]], dtype=F64))
        result = lmd.run(MirrorDescent(EuclideanSimplex(), 0.1), problem, problem.y.flip(0), 5)
        record = replace(Record.of(result), solver=MirrorDescent(Euclidean(), 0.1))
        assert record.mirror is None
        self.nothing(regret_certificate(record), "it needs mirror descent")

    def test_of_minibatches_and_of_proximal_steps(self):
        stochastic = self.run(Stochastic(MirrorDescent(Euclidean(), 0.1), 1))
        self.nothing(regret_certificate(stochastic))
        self.nothing(relative_certificate(stochastic))

    def test_of_a_lazy_run_with_an_inexact_mirror(self, sloppy_mirror):
        record = self.run(LazyMirrorDescent(sloppy_mirror(0.01), 0.1))
        self.nothing(regret_certificate(record))
        self.nothing(relative_certificate(record))

    def test_of_a_run_that_ended_before_it_began(self):
        record = self.run(MirrorDescent(Euclidean(), 0.1), target_value=1e6)
        self.nothing(regret_certificate(record))
        assert bool(subgradient_certificate(record).proven.all())

    def test_of_a_function_without_any_constants(self):
        result = lmd.run(GradientDescent(0.1), lambda x: x.abs().sum(dim=1), torch.ones(2, 3), 4)
        self.nothing(result.certificate, "it needs")


class TestConstants:
    def test_of_f_in_the_norm_of_the_mirror(self):
        """mu/2 ||v||_2^2 >= mu/(2n) ||v||_1^2, and L/2 ||v||_2^2 <= L/2 ||v||_1^2."""
        problem, x0 = SimplexFamily("least-squares", 5).sample(2, torch.Generator().manual_seed(0))
        record = Record.of(lmd.run(MirrorDescent(Entropic(), 0.1), problem, x0, 2))
        assert float(record.strong_convexity("l1").value) == pytest.approx(2 / 5)
        assert float(record.strong_convexity("linf").value) == float(record.strong_convexity("l2").value)
        assert float(record.strong_convexity("l2").value) == pytest.approx(2)
        assert float(record.smoothness("l1").value) == float(record.smoothness("l2").value) == 2
        assert float(record.smoothness("linf").value) == 10
        assert regret_certificate(record).norm == "l1"
        assert "from l2 to l1" in regret_certificate(record).constants["mu"].origin

    def test_say_where_they_came_from(self):
        problem = LeastSquares(torch.eye(2, dtype=F64), torch.ones(2, 2, dtype=F64))
        result = lmd.run(MirrorDescent(Euclidean(), 0.5), problem, torch.zeros(2, 2, dtype=F64), 5)
        constants = relative_certificate(Record.of(result)).constants
        found = {name: float(c.value.max()) for name, c in constants.items() if name != "divergence"}
        assert found == pytest.approx({"sigma": 1.0, "mu": 2.0, "L": 2.0, "relative mu": 2.0})
        assert found["mu"] < 2  # what may be the rounding of an eigenvalue is taken off
        assert constants["L"].origin == "the problem's smoothness / sigma"
        given_one = relative_certificate(Record.of(result), 3.0, 1.0, 0.7).constants
        assert [given_one[name].origin for name in ("L", "relative mu", "divergence")] == ["given"] * 3

    @pytest.mark.parametrize(
        ("argument", "value"), [("divergence", -1.0), ("divergence", [1.0, 2.0, 3.0]), ("relative_smoothness", -2.0)]
    )
    def test_that_cannot_be(self, argument, value):
        problem = LeastSquares(torch.eye(2, dtype=F64), torch.ones(2, 2, dtype=F64))
        result = lmd.run(MirrorDescent(Euclidean(), 0.5), problem, torch.zeros(2, 2, dtype=F64), 5)
        with pytest.raises(InputError, match=r"expected a number of 0 or more, or one per instance \(2,\)"):
            certify(result, **{argument: value})


class TestExplain:
    def test_names_bound_theorem_norm_and_constants(self):
        problem = LeastSquares(torch.eye(2, dtype=F64), torch.ones(2, 2, dtype=F64))
        result = lmd.run(MirrorDescent(Euclidean(), 0.25), problem, torch.zeros(2, 2, dtype=F64), 5)
        text = regret_certificate(Record.of(result), 1.0).explain()
        assert text.startswith("The value exceeds the minimum by at most ")
        for words in ("Beck and Teboulle 2003", "in the l2 norm", "sigma = 1 (the mirror's strong convexity)"):
            assert words in text
        assert "divergence = 1 (given)" in text and "\n" not in text

    def test_says_which_theorem_served_how_many(self):
        problem = LeastSquares(torch.eye(2, dtype=F64), torch.zeros(2, 2, dtype=F64))
        result = lmd.run(MirrorDescent(Euclidean(), 0.25), problem, torch.ones(2, 2, dtype=F64), 5)
        first, second = subgradient_certificate(Record.of(result)), regret_certificate(Record.of(result), 100.0)
        lower = torch.tensor([0.0, 0.1], dtype=F64) - 1
        parts = [
            Certificate(first.value, lower, "one", "l2"),
            Certificate(second.value, lower.flip(0), "two", "l1"),
        ]
        best = best_of(parts)
        assert_close(best.lower_bound, torch.full((2,), -0.9, dtype=F64))
        assert best.explain().count("for 1 of 2 instances") == 2 and best.norm == "l1 or l2"

    def test_counts_instances_without_a_bound(self):
        lower = torch.tensor([-torch.inf, 0.5])
        assert "(1 of 2 instances have no bound)" in Certificate(lower.exp(), lower, "it", "l2").explain()


class TestResult:
    def test_the_certificate_is_made_once_and_only_when_asked_for(self):
        calls = []

        class Counting(LeastSquares):
            @property
            def strong_convexity(self):
                calls.append(1)
                return super().strong_convexity

        problem = Counting(torch.eye(2, dtype=F64), torch.ones(2, 2, dtype=F64))
        result = lmd.run(MirrorDescent(Euclidean(), 0.25), problem, torch.zeros(2, 2, dtype=F64), 5)
        assert not calls
        assert result.certificate is result.certificate and calls

    def test_the_solvers_own_run_knows_no_theorems(self):
        problem = LeastSquares(torch.eye(2, dtype=F64), torch.ones(2, 2, dtype=F64))
        assert lmd.solvers.run(GradientDescent(0.1), problem, torch.zeros(2, 2, dtype=F64), 2).certificate is None

    def test_lmd_run_is_otherwise_the_same_function(self):
        assert lmd.run.__doc__ == lmd.solvers.run.__doc__
        with pytest.raises(InputError, match=r"^solver: got str"):
            lmd.run("adam", lambda x: x, torch.zeros(1, 1))

    def test_learned_steps_are_part_of_it(self):
        problem = LeastSquares(torch.eye(2), torch.ones(2, 2))
        result = lmd.run(LearnedMirrorDescent(Quadratic(2), 4), problem, torch.zeros(2, 2))
        assert not result.certificate.bound.requires_grad and bool(result.certificate.proven.all())


def test_a_network_says_so_when_its_weights_are_not_what_they_should_be():
    network = PotentialNetwork(Matrices(3), width=64, layers=2)
    assert float(network.strong_convexity) > 0
    with torch.no_grad():
        network.out[0] = -1.0
    assert float(network.strong_convexity) == 0
    network.constrain_()
    assert float(network.strong_convexity) > 0


def test_residuals_of_an_exact_mirror_have_the_dtype_of_the_run():
    problem = LeastSquares(torch.eye(2, dtype=F64), torch.ones(3, 2, dtype=F64))
    record = Record.of(lmd.run(MirrorDescent(Euclidean(), 0.1), problem, torch.zeros(3, 2, dtype=F64), 4))
    assert record.residuals.dtype == F64 and record.residuals.tolist() == [[0.0] * 3] * 4
