"""Safeguards: whatever is wrapped, the answer is as good as the classical method's; and good steps are kept."""

import collections

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.guarantees import DescentSafeguard, Safeguard, guard
from lmd.guarantees.certify import Record, subgradient_certificate
from lmd.guarantees.safeguard import default_fallback
from lmd.mirrors import Entropic, Euclidean, Quadratic
from lmd.problems import SVM, LeastSquares, SimplexFamily, TVDenoising, TVInpainting
from lmd.solvers import (
    FGP,
    LBFGS,
    PDHG,
    AcceleratedMirrorDescent,
    Adam,
    GradientDescent,
    LazyMirrorDescent,
    LearnedDual,
    LearnedSaddle,
    LearnedSteps,
    MirrorDescent,
    Nesterov,
    Solver,
    State,
)
from lmd.solvers.classical.interior_point import InteriorPoint

F64 = torch.float64


def images(count=3, size=10, seed=0):
    steps = torch.linspace(0, 1, size, dtype=F64)
    clean = ((steps[:, None] > 0.5) ^ (steps[None, :] > 0.3)).to(F64).expand(count, 1, size, size)
    return clean + 0.1 * torch.randn(count, 1, size, size, dtype=F64, generator=torch.Generator().manual_seed(seed))


def inpainting():
    mask = (torch.rand(3, 1, 10, 10, generator=torch.Generator().manual_seed(1)) < 0.7).to(F64)
    return TVInpainting(mask * images(), mask, 0.1)


class Oracle(Solver):
    """Jumps to given points, one per iteration, and stays at the last: the best and the worst of learned solvers."""

    def __init__(self, points, horizon=None):
        super().__init__()
        self.points, self.trained_for = points, horizon

    @property
    def step_cost(self):
        return {"to_dual": 1}

    @property
    def horizon(self):
        return self.trained_for

    def init(self, problem, x0):
        return State(x0)

    def step(self, problem, state):
        return State(self.points[min(state.iteration, len(self.points) - 1)], state.iteration + 1)


WILD = {
    "divergent": lambda: GradientDescent(1e3),
    "noise": lambda: Adam(5.0),
    "slow": lambda: GradientDescent(1e-6),
    "NaN": lambda: GradientDescent(1e300),
    "learned": lambda: MirrorDescent(Euclidean(), LearnedSteps(5, 0.05).double()),
}


class TestSafeguard:
    @pytest.mark.parametrize("wild", WILD)
    @pytest.mark.parametrize("fallback", [PDHG(), FGP()], ids=["PDHG", "FGP"])
    def test_is_never_behind_the_fallback(self, wild, fallback):
        problem = TVDenoising(images(), 0.2)
        guarded = lmd.run(Safeguard(WILD[wild](), fallback), problem, iterations=40).history.values
        classical = lmd.run(fallback, problem, iterations=40).history.values
        assert bool((guarded <= classical).all())
        assert bool((guarded.diff(dim=0) <= 0).all())

    def test_is_never_behind_the_learned_solver_before_it_gives_up_on_it(self):
        problem = TVDenoising(images(), 0.2)
        solver = WILD["learned"]()
        guarded, learned = (lmd.run(each, problem, iterations=5).history.values for each in (Safeguard(solver), solver))
        assert bool((guarded <= learned).all()) and bool((guarded[1:] < learned[1:]).any())

    @pytest.mark.parametrize(
        "make",
        [lambda: TVDenoising(images(), 0.2), lambda: TVDenoising(30 * images(), 6.0), inpainting],
        ids=["denoising", "rescaled", "inpainting"],
    )
    def test_out_of_distribution_costs_speed_and_not_correctness(self, make):
        problem = make()
        result = lmd.run(Safeguard(GradientDescent(1e3), PDHG(tau=0.05)), problem, iterations=1500)
        minimum = lmd.guarantees.minimum(problem)
        assert bool(((result.values - minimum) / minimum < 1e-3).all())
        assert bool((result.certificate.bound >= result.values - minimum).all())
        assert bool((result.certificate.bound < 0.05 * minimum).all())

    def test_keeps_what_the_learned_solver_finds(self):
        problem = TVDenoising(images(), 0.2)
        solution = lmd.guarantees.minimiser(problem)
        result = lmd.run(Safeguard(Oracle([solution], horizon=6)), problem, iterations=6)
        assert torch.equal(result.x, solution)
        assert result.evaluations["fallback"].tolist() == [0, 0, 0]

    def test_waits_for_the_last_trained_iterate(self):
        """Only the tenth learned iterate is any good, and the nine before it are terrible."""
        problem = TVDenoising(images(), 0.2)
        points = [problem.noisy + 5] * 9 + [lmd.guarantees.minimiser(problem)]
        result = lmd.run(Safeguard(Oracle(points, 10)), problem)
        assert torch.equal(result.x, points[-1])
        assert result.evaluations["fallback"].tolist() == [9] * 3

    def test_decides_instance_by_instance(self):
        problem = TVDenoising(images(), 0.2)
        points = lmd.guarantees.minimiser(problem)
        points[1] += 3
        guarded = Safeguard(Oracle([points], horizon=5))
        result = lmd.run(guarded, problem, iterations=30)
        assert torch.equal(result.x[[0, 2]], points[[0, 2]])
        assert result.evaluations["fallback"].tolist() == [0, 30, 0]
        alone = lmd.run(Safeguard(Oracle([points[1:2]], horizon=5)), problem.select(1), iterations=30)
        assert_close(alone.x, result.x[1:2])
        assert alone.evaluations["to_dual"].item() == result.evaluations["to_dual"][1].item()

    def test_gives_up_past_the_horizon_and_not_before(self):
        problem = TVDenoising(images(), 0.2)
        result = lmd.run(Safeguard(Oracle([problem.noisy + 5], horizon=12)), problem, iterations=40)
        assert result.evaluations["to_dual"].tolist() == [12, 12, 12]

    def test_a_nan_ends_the_trials_at_once(self):
        problem = TVDenoising(images(), 0.2)
        points = torch.full_like(problem.noisy, torch.nan)
        result = lmd.run(Safeguard(Oracle([points], horizon=20)), problem, iterations=20)
        assert result.ok and result.evaluations["to_dual"].tolist() == [1, 1, 1]

    def test_shows_where_it_fell_back(self):
        problem = TVDenoising(images(), 0.2)
        history = lmd.run(
            Safeguard(Oracle([lmd.guarantees.minimiser(problem), problem.noisy + 5], horizon=4)), problem, None, 8
        ).history
        assert history.diagnostics["fallback"][:8].sum() == 0
        history = lmd.run(Safeguard(Oracle([problem.noisy + 5], horizon=4)), problem, iterations=8).history
        assert history.diagnostics["fallback"][:8, 0].tolist() == [0, 1, 1, 1, 1, 1, 1, 1]

    def test_costs_one_value_more_than_the_run_alone_and_the_classical_step(self):
        calls = collections.Counter()

        class Counting(TVDenoising):
            def value(self, x):
                calls["value"] += 1
                return super().value(x)

        problem = Counting(images(), 0.2)
        solver = MirrorDescent(Euclidean(), LearnedSteps(5, 0.05).double())
        lmd.run(solver, problem, iterations=5)
        alone = calls.pop("value")
        counted = lmd.run(Safeguard(solver, FGP()), problem, iterations=5).evaluations
        assert calls.pop("value") == alone + 5  # the one at the start is the run's own
        expected = {"value": 11, "subgradient": 5, "to_dual": 5, "to_primal": 5, "operator": 6, "adjoint": 5}
        assert {name: counted[name].tolist() for name in expected} == {name: [n] * 3 for name, n in expected.items()}
        nested = Safeguard(Safeguard(Oracle([problem.noisy + 5])), FGP())
        counted = lmd.run(nested, problem, iterations=9).evaluations
        assert calls.pop("value") == counted["value"][0] == 2 + 3 * 9  # nothing is looked at twice

    @pytest.mark.parametrize("wild", WILD)
    def test_a_late_fallback_catches_up(self, wild):
        problem = TVDenoising(images(), 0.2)
        guarded = lmd.run(Safeguard(WILD[wild](), PDHG(), delay=6), problem, iterations=30).history.values
        classical = lmd.run(PDHG(), problem, iterations=30).history.values
        assert bool((guarded[12:] <= classical[12:]).all()) and bool((guarded.diff(dim=0) <= 0).all())
        for k in range(6, 12):
            assert bool((guarded[k] <= classical[2 * (k - 6)]).all())

    def test_until_it_is_due_a_late_fallback_costs_nothing(self):
        problem = TVDenoising(images(), 0.2)
        solver = MirrorDescent(Euclidean(), LearnedSteps(5, 0.05).double())
        late = lmd.run(Safeguard(solver, FGP(), delay=5), problem, iterations=5)
        alone = lmd.run(solver, problem, iterations=5)
        assert {name: n.tolist() for name, n in late.evaluations.items() if name not in ("value", "fallback")} == {
            name: n.tolist() for name, n in alone.evaluations.items()
        }
        assert late.evaluations["value"].tolist() == [6] * 3  # those of the record
        assert bool((late.values == alone.history.values.amin(dim=0)).all())
        counted = lmd.run(Safeguard(Oracle([problem.noisy + 5], 5), FGP(), delay=5), problem, iterations=12).evaluations
        assert counted["adjoint"].tolist() == [12] * 3 and counted["operator"].tolist() == [13] * 3
        assert counted["to_dual"].tolist() == [6] * 3 and counted["fallback"].tolist() == [7] * 3

    def test_who_was_trained_for_no_number_of_iterations_has_ten(self):
        problem = TVDenoising(images(), 0.2)
        result = lmd.run(Safeguard(Oracle([problem.noisy + 5])), problem, iterations=40)
        assert result.evaluations["to_dual"].tolist() == [10] * 3
        points = [problem.noisy + 5] * 9 + [lmd.guarantees.minimiser(problem)]
        assert torch.equal(lmd.run(Safeguard(Oracle(points)), problem, iterations=40).x, points[-1])

    def test_the_dual_point_is_that_of_the_solver_which_has_the_answer(self):
        problem = TVDenoising(images(), 0.2)
        result = lmd.run(Safeguard(FGP(), GradientDescent(1e3)), problem, iterations=30)
        assert torch.equal(result.dual, lmd.run(FGP(), problem, iterations=30).dual)
        both = lmd.run(Safeguard(FGP(), PDHG(tau=1e-3)), problem, iterations=30)
        assert torch.equal(both.dual, result.dual)
        assert torch.equal(lmd.run(Safeguard(PDHG(tau=1e-3), FGP()), problem, iterations=30).dual, result.dual)

    def test_each_kind_of_problem_has_a_fallback_of_its_own(self):
        squares = LeastSquares(torch.eye(2, dtype=F64), torch.ones(2, 2, dtype=F64))
        svm = SVM(torch.eye(2, dtype=F64), torch.tensor([1, -1]), starts=2)
        start = torch.full((2, 3), 5.0, dtype=F64)
        assert [type(default_fallback(p)) for p in (inpainting(), squares, svm)] == [PDHG, LBFGS, InteriorPoint]
        for problem, x0 in ((squares, start[:, :2]), (svm, start)):
            result = lmd.run(Safeguard(GradientDescent(1e3)), problem, x0, 30)
            assert_close(result.values, lmd.guarantees.minimum(problem), rtol=1e-6, atol=1e-9)

    def test_has_a_dual_point_and_stops_at_a_tolerance(self):
        problem = TVDenoising(images(), 0.2)
        result = lmd.run(Safeguard(GradientDescent(1e3), FGP(restart=True)), problem, tolerance=1e-3)
        assert {status.name for status in result.status} == {"TOLERANCE_REACHED"}
        assert result.certificate.theorem.startswith("weak duality")

    def test_on_other_problems_with_a_fallback_of_ones_own(self):
        problem, x0 = SimplexFamily("least-squares", 4).sample(7, torch.Generator().manual_seed(0))
        for fallback in (GradientDescent(0.4), MirrorDescent(Entropic(), 0.5)):
            result = lmd.run(Safeguard(MirrorDescent(Entropic(), 30.0), fallback), problem, x0, 60)
            assert bool((result.values < 1e-6).all())
        squares = LeastSquares(torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=F64), torch.ones(2, 2, dtype=F64))
        result = lmd.run(Safeguard(GradientDescent(1.0), LBFGS()), squares, torch.zeros(2, 2, dtype=F64), 30)
        assert bool((result.values < 1e-12).all())

    def test_nests(self):
        """Good at 20 iterations by one fall-back, and at 300 by another."""
        problem = inpainting()
        early, late = PDHG(tau=0.2), PDHG(tau=0.02)
        both = lmd.run(Safeguard(Safeguard(GradientDescent(1e3), early), late), problem, iterations=300).history.values
        for fallback in (early, late):
            alone = lmd.run(fallback, problem, iterations=300).history.values
            assert bool((both[[20, 300]] <= alone[[20, 300]]).all())

    def test_survives_saving(self, tmp_path):
        for fallback in (None, FGP()):
            guarded = Safeguard(MirrorDescent(Euclidean(), LearnedSteps(5, 0.05)), fallback)
            loaded = lmd.solvers.load(lmd.solvers.save(guarded, tmp_path))
            problem = TVDenoising(images().float(), 0.2)
            assert torch.equal(*(lmd.run(each, problem, iterations=9).x for each in (guarded, loaded)))
            assert guarded.horizon == 5

    def test_bad_arguments(self):
        with pytest.raises(InputError, match=r"^solver: got str, expected an lmd.solvers.Solver"):
            Safeguard("adam")
        with pytest.raises(InputError, match=r"^fallback: got str"):
            Safeguard(GradientDescent(0.1), "adam")
        with pytest.raises(InputError, match=r"^delay: got -1"):
            Safeguard(GradientDescent(0.1), delay=-1)
        with pytest.raises(CapabilityError, match="neither composite, nor an SVM, nor smooth"):
            lmd.run(Safeguard(GradientDescent(0.1)), lambda x: x.square().sum(dim=1), torch.ones(1, 2))
        with pytest.raises(CapabilityError, match="which has no rows"):
            lmd.run(Safeguard(GradientDescent(0.1), InteriorPoint()), TVDenoising(images(), 0.2))


def squares(batch=5):
    generator = torch.Generator().manual_seed(0)
    W = torch.diag(torch.tensor([3.0, 1.0, 0.3, 0.1], dtype=F64))
    problem = LeastSquares(W, torch.randn(batch, 4, dtype=F64, generator=generator))
    return problem, torch.randn(batch, 4, dtype=F64, generator=generator)


TAME_AND_WILD = {
    "divergent": lambda: GradientDescent(10.0),
    "NaN": lambda: GradientDescent(1e300),
    "slow": lambda: MirrorDescent(Euclidean(), 1e-9),
    "lazy": lambda: LazyMirrorDescent(Euclidean(), 0.2),
    "accelerated": lambda: AcceleratedMirrorDescent(Euclidean(), 0.2),
    "Adam": lambda: Adam(1.0),
    "mirror": lambda: MirrorDescent(
        Quadratic.from_matrix(torch.diag(torch.tensor([9.0, 1, 0.09, 0.01]).double())), 0.4
    ),
}


class TestGuard:
    def test_a_delay_of_none_is_what_guard_would_choose(self):
        squares = LeastSquares(torch.eye(2, dtype=F64), torch.ones(3, 2, dtype=F64))
        for problem, x0, point in (
            (TVDenoising(images(), 0.2), images(), images() + 5),
            (squares, torch.zeros(3, 2, dtype=F64), torch.ones(3, 2, dtype=F64)),
        ):
            solver = Oracle([point], horizon=15)
            chosen, free = (
                lmd.run(each, problem, x0, 25) for each in (guard(solver, problem), Safeguard(solver, delay=None))
            )
            assert torch.equal(chosen.history.values, free.history.values)
            assert chosen.evaluations["fallback"].tolist() == free.evaluations["fallback"].tolist()

    def test_without_a_known_fallback_a_delay_of_none_keeps_the_best_learned_point(self):
        x0 = torch.ones(1, 2, dtype=F64)
        points = [3 * x0, 0.5 * x0, 2 * x0, torch.full_like(x0, torch.nan), 0.1 * x0]
        result = lmd.run(Safeguard(Oracle(points), delay=None), lambda x: x.abs().sum(dim=1), x0, iterations=4)
        assert result.ok and result.history.values.flatten().tolist() == [2, 2, 1, 1, 1]
        assert result.evaluations["fallback"].tolist() == [0]

    def test_a_solver_that_ends_proven_is_let_through_its_iterations(self):
        problem = TVDenoising(images(), 0.2)
        for solver in (LearnedDual(15), LearnedSaddle(15, masked=False)):
            assert solver.ends_proven and guard(solver, problem).delay == 15
        assert guard(Oracle([problem.noisy], horizon=15), problem).delay == 10

    def test_before_the_delay_is_over_the_answer_is_the_best_learned_point(self):
        problem = TVDenoising(images(), 0.2)
        best, worse = lmd.guarantees.minimiser(problem), problem.noisy + 5
        points = [worse, best, torch.full_like(best, torch.nan), worse]
        values = lmd.run(Safeguard(Oracle(points, 4), FGP(), delay=4), problem, iterations=4).history.values
        assert_close(values, torch.stack([values[0], values[0], *[problem.value(best)] * 3]))
        mixed = torch.cat([worse[:1], best[1:]])
        x = lmd.run(Safeguard(Oracle([mixed], 1), FGP(), delay=1), problem, iterations=1).x
        assert torch.equal(x, torch.cat([problem.noisy[:1], best[1:]]))


class TestDescentSafeguard:
    @pytest.mark.parametrize("wild", TAME_AND_WILD)
    def test_every_step_gains_what_half_a_gradient_step_is_sure_to_gain(self, wild):
        problem, x0 = squares()
        guarded = DescentSafeguard(TAME_AND_WILD[wild]())
        state = guarded.init(problem, x0)
        for _ in range(60):
            after = guarded.step(problem, state)
            sure = problem.subgradient(state.x).square().sum(dim=1) / (4 * problem.smoothness)
            assert bool((problem.value(after.x) <= problem.value(state.x) - sure + 1e-13).all())
            assert torch.equal(after.value, problem.value(after.x))
            state = after

    @pytest.mark.parametrize("wild", TAME_AND_WILD)
    def test_converges_at_the_rate_of_gradient_descent(self, wild):
        problem, x0 = squares()
        values = lmd.run(DescentSafeguard(TAME_AND_WILD[wild]()), problem, x0, 400).history.values - problem.minimum()
        k = torch.arange(401, dtype=F64)[:, None]
        radius = ((problem.value(x0) - problem.minimum()) / (problem.strong_convexity / 2)).sqrt()
        assert bool((values <= 4 * problem.smoothness * radius.square() / (k + 8)).all())
        assert bool((values[400] < 0.15 * values[0]).all())

    def test_good_steps_are_kept(self):
        problem, x0 = squares()
        mirror = TAME_AND_WILD["mirror"]()
        guarded, free = (lmd.run(each, problem, x0, 20) for each in (DescentSafeguard(mirror), mirror))
        assert_close(guarded.x, free.x)
        assert guarded.evaluations["fallback"].tolist() == [0] * 5

    def test_decides_instance_by_instance(self):
        problem, x0 = squares()
        points = lmd.guarantees.minimiser(problem).clone()
        points[3] += 10
        result = lmd.run(DescentSafeguard(Oracle([points])), problem, x0, 1)
        assert result.evaluations["fallback"].tolist() == [0, 0, 0, 1, 0]
        assert_close(result.x[3], x0[3] - problem.subgradient(x0)[3] / problem.smoothness)
        assert_close(result.x[:3], points[:3])

    def test_an_instance_of_a_batch_is_the_instance_alone(self):
        problem, x0 = squares()
        for make in TAME_AND_WILD.values():
            together = lmd.run(DescentSafeguard(make()), problem, x0, 15)
            for i in range(5):
                alone = lmd.run(DescentSafeguard(make()), problem.select(i), x0[i : i + 1], 15)
                assert_close(alone.x, together.x[i : i + 1])

    def test_a_learned_solver_that_recovers_is_trusted_again(self):
        """Bad for three iterations, then at the minimiser."""
        problem, x0 = squares()
        bad = x0 + 10
        result = lmd.run(DescentSafeguard(Oracle([bad, bad, bad, lmd.guarantees.minimiser(problem)])), problem, x0, 6)
        assert_close(result.values, lmd.guarantees.minimum(problem))
        assert bool((result.evaluations["fallback"] <= 5).all())

    def test_costs_one_value_per_iteration_and_another_one_where_it_falls_back(self):
        calls = collections.Counter()

        class Counting(LeastSquares):
            def value(self, x):
                calls["value"] += 1
                return super().value(x)

            def subgradient(self, x):
                calls["subgradient"] += 1
                return super().subgradient(x)

            @property
            def smoothness(self):
                calls["smoothness"] += 1
                return super().smoothness

        whole, x0 = squares()
        problem = Counting(whole.W, whole.b)
        for solver, times in ((TAME_AND_WILD["mirror"](), 1), (TAME_AND_WILD["slow"](), 2)):
            guarded = DescentSafeguard(solver)
            calls.clear()
            state = guarded.init(problem, x0)
            assert calls["value"] == 1 and calls["subgradient"] == 0
            for _ in range(9):
                calls.clear()
                state = guarded.step(problem, state)
                assert calls["value"] == calls["subgradient"] == times and calls["smoothness"] == 0

    def test_the_count_of_subgradients(self):
        problem, x0 = squares()
        counts = lmd.run(DescentSafeguard(TAME_AND_WILD["slow"]()), problem, x0, 8).evaluations
        assert counts["subgradient"].tolist() == [8 + 8] * 5 and counts["fallback"].tolist() == [8] * 5
        assert counts["to_primal"].tolist() == [8] * 5 and counts["value"].tolist() == [1 + 8 + 8] * 5

    def test_of_a_plain_function_with_a_known_smoothness(self):
        class Bowl(lmd.problems.Problem):
            smoothness = torch.tensor(2.0)

            def value(self, x):
                return x.square().sum(dim=1)

        result = lmd.run(DescentSafeguard(GradientDescent(7.0)), Bowl(), torch.ones(3, 2), 4)
        assert bool((result.values == 0).all())

    def test_its_answers_are_certified_by_strong_convexity(self):
        problem, x0 = squares()
        result = lmd.run(DescentSafeguard(TAME_AND_WILD["mirror"]()), problem, x0, 20)
        certificate = subgradient_certificate(Record.of(result))
        assert bool((certificate.bound >= result.values - lmd.guarantees.minimum(problem)).all())
        assert_close(result.certificate.bound, certificate.bound)

    def test_survives_saving(self, tmp_path):
        guarded = DescentSafeguard(MirrorDescent(Quadratic(4), LearnedSteps(5, 0.05)))
        loaded = lmd.solvers.load(lmd.solvers.save(guarded, tmp_path))
        problem, x0 = squares()
        assert torch.equal(*(lmd.run(each.double(), problem, x0).x for each in (guarded, loaded)))
        assert guarded.horizon == 5

    def test_bad_arguments(self):
        problem, x0 = squares()
        with pytest.raises(InputError, match=r"^solver: got str"):
            DescentSafeguard("adam")
        with pytest.raises(CapabilityError, match="which has no smoothness"):
            lmd.run(DescentSafeguard(GradientDescent(0.1)), lambda x: x.abs().sum(dim=1), x0)
        simplex, start = SimplexFamily("least-squares", 4).sample(2, torch.Generator().manual_seed(0))
        with pytest.raises(CapabilityError, match=r"^solver: got DescentSafeguard, which may leave"):
            lmd.run(DescentSafeguard(GradientDescent(0.1)), simplex, start)
        with pytest.raises(InputError, match=r"one whose state keeps momentum for the whole batch"):
            lmd.run(DescentSafeguard(Nesterov(100.0)), problem, x0)
