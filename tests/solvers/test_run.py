import math

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.mirrors import DiagonalQuadratic, Quadratic
from lmd.solvers import Adam, BestSoFar, GradientDescent, LearnedSteps, MirrorDescent, Nesterov, Solver, State, Status
from lmd.zoo.solve import find


def squares(x):
    return x.square().sum(dim=1)


def column(*entries):
    return torch.tensor(entries, dtype=torch.float64)[:, None]


class TestHistory:
    def test_rows_are_the_start_and_each_iterate(self):
        """x_k = 0.6^k x_0 for steps of 0.2."""
        result = lmd.run(GradientDescent(0.2), squares, column(1.0, 2.0), iterations=3)
        powers = 0.6 ** torch.arange(4, dtype=torch.float64)[:, None]
        assert len(result.history) == 4
        assert_close(result.history.values, powers**2 * torch.tensor([[1.0, 4.0]]).double())
        assert_close(result.values, result.history.values[-1])
        assert_close(result.x, 0.6**3 * column(1.0, 2.0))
        assert result.iterations.tolist() == [3, 3] and result.status == (Status.FINISHED,) * 2 and result.ok

    def test_seconds_grow(self):
        result = lmd.run(GradientDescent(0.2), squares, column(1.0), iterations=5)
        assert result.history.seconds.shape == (6,)
        assert bool((result.history.seconds.diff() > 0).all())
        assert result.seconds >= result.history.seconds[-1]

    def test_long_runs_are_recorded_whole(self):
        """More rows than are set aside at first, and a diagnostic that begins late: NaN before."""

        class Late(GradientDescent):
            def step(self, problem, state):
                stepped = super().step(problem, state)
                late = {"late": stepped.x[:, 0]} if state.iteration >= 150 else {}
                return State(stepped.x, stepped.iteration, late)

        history = lmd.run(Late(0.005), squares, column(1.0, 2.0), iterations=200).history
        assert_close(history.values[:, 0], 0.99 ** (2 * torch.arange(201, dtype=torch.float64)))
        late = history.diagnostics["late"]
        assert late.shape == (201, 2) and bool(late[:150].isnan().all()) and not bool(late[150:200].isnan().any())

    def test_without_a_record_there_are_the_start_and_the_end(self):
        whole, ends = (lmd.run(Adam(0.1), squares, column(1.0, 2.0), 30, record=record) for record in (True, False))
        assert_close(ends.x, whole.x)
        assert_close(ends.history.values, whole.history.values[[0, 30]])
        assert ends.iterations.tolist() == [30, 30] and ends.status == whole.status
        assert {k: v.tolist() for k, v in ends.evaluations.items()} == {
            k: v.tolist() for k, v in whole.evaluations.items()
        }

    def test_without_a_record_a_certificate_still_holds(self):
        problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
        result = lmd.run(MirrorDescent(Quadratic(2).double(), 0.02), problem, x0, 40, record=False)
        assert bool((result.certificate.bound >= result.values - lmd.guarantees.minimum(problem)).all())

    def test_without_a_record_nothing_can_stop_a_run(self):
        for watched in ({"target_value": 0.1}, {"callbacks": [lambda state, values: None]}):
            with pytest.raises(InputError, match="record: got False"):
                lmd.run(GradientDescent(0.1), squares, column(1.0), 5, record=False, **watched)

    def test_images_are_welcome(self):
        x0 = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
        result = lmd.run(GradientDescent(0.25), lambda x: x.square().sum(dim=(1, 2, 3)), x0, iterations=2)
        assert_close(result.x, x0 / 4)

    def test_the_start_is_left_alone_and_no_graph_is_kept(self):
        x0 = column(1.0).requires_grad_()
        result = lmd.run(GradientDescent(0.2), squares, x0, iterations=2)
        assert_close(x0.detach(), column(1.0))
        assert not result.x.requires_grad and not result.history.values.requires_grad


class TestStopping:
    def test_on_a_value_for_all(self):
        result = lmd.run(GradientDescent(0.25), squares, column(1.0, 4.0, 1e6), iterations=6, target_value=0.1)
        assert result.status == (Status.TARGET_REACHED, Status.TARGET_REACHED, Status.FINISHED)
        assert result.iterations.tolist() == [2, 4, 6]
        assert_close(result.x, column(1 / 4, 4 / 16, 1e6 / 64))

    def test_on_a_value_per_instance(self):
        targets = torch.tensor([0.3, 1e-3])
        result = lmd.run(GradientDescent(0.25), squares, column(1.0, 1.0), iterations=20, target_value=targets)
        assert result.iterations.tolist() == [1, 5]
        assert bool((result.values <= targets).all())

    def test_on_a_value_at_the_start(self):
        result = lmd.run(GradientDescent(0.25), squares, column(0.1, 1.0), iterations=20, target_value=0.01 + 1e-9)
        assert result.iterations.tolist() == [0, 4]
        assert result.x[0] == 0.1 and result.evaluations["subgradient"].tolist() == [0, 4]
        at_once = lmd.run(GradientDescent(0.25), squares, column(0.1), iterations=20, target_value=1.0)
        assert len(at_once.history) == 1 and at_once.status == (Status.TARGET_REACHED,)

    def test_a_stopped_instance_keeps_its_last_numbers(self):
        result = lmd.run(GradientDescent(0.25), squares, column(1.0, 1e3), iterations=5, target_value=0.3)
        assert_close(result.history.values[:, 0], torch.tensor([1.0] + [0.25] * 5).double())
        assert result.evaluations["subgradient"].tolist() == [1, 5]

    def test_diagnostics_of_a_stopped_instance_end(self):
        class Noting(GradientDescent):
            def step(self, problem, state):
                free = super().step(problem, state)
                return State(free.x, free.iteration, {"where": state.x[:, 0], "count": torch.tensor([1, 2])})

        history = lmd.run(Noting(0.25), squares, column(1.0, 8.0), iterations=3, target_value=0.3).history
        assert_close(
            history.diagnostics["where"],
            torch.tensor([[1.0, 8.0], [math.nan, 4.0], [math.nan, 2.0], [math.nan, math.nan]]).double(),
            equal_nan=True,
        )
        assert history.diagnostics["count"][0].tolist() == [1, 2]


class TestFailures:
    """Instance 1 diverges, instance 3 walks into a NaN, instances 0, 2 and 4 have to notice nothing."""

    CURVATURE = (1.0, 100.0, 0.5, 15.0, 2.0)
    WALL = (0.0, 0.0, 0.0, 1.0, 0.0)
    X0 = column(1.0, 1.0, -2.0, 4.0, 3.0) * torch.tensor([[1.0, 0.5]]).double()

    @pytest.mark.parametrize(
        "solver",
        [
            GradientDescent(0.1),
            Nesterov(0.1),
            MirrorDescent(DiagonalQuadratic(2, diagonal=torch.tensor([1.0, 1.1])).double(), 0.1),
            MirrorDescent(Quadratic(2).double(), LearnedSteps(3, 0.1, (0.01, 0.2))),
        ],
        ids=["gradient", "nesterov", "diagonal", "learned"],
    )
    def test_the_others_go_on_as_if_alone(self, solver, bowls):
        problem = bowls(self.CURVATURE, self.WALL)
        result = lmd.run(solver, problem, self.X0, iterations=25)
        names = [status.name for status in result.status]
        assert names == ["FINISHED", "DIVERGED", "FINISHED", "NOT_FINITE", "FINISHED"]
        assert not result.ok
        for i in range(5):
            alone = lmd.run(solver, problem.select(i), self.X0[i : i + 1], iterations=25)
            assert_close(result.x[i : i + 1], alone.x)
            assert_close(result.values[i : i + 1], alone.values)
            assert (result.status[i], result.iterations[i]) == (alone.status[0], alone.iterations[0])
            rows = len(alone.history)
            assert_close(result.history.values[:rows, i : i + 1], alone.history.values, equal_nan=True)

    def test_the_best_finite_point_is_kept(self, bowls):
        problem = bowls(self.CURVATURE, self.WALL)
        result = lmd.run(GradientDescent(0.1), problem, self.X0, iterations=25)
        for i in (1, 3):
            seen = result.history.values[: result.iterations[i] + 1, i]
            assert result.values[i] == seen[torch.isfinite(seen)].min()
        assert bool(torch.isfinite(result.x).all())
        assert_close(problem.value(result.x), result.values)

    def test_the_point_before_a_late_failure_is_the_best_not_the_start(self):
        """Steps that grow: x shrinks for a while and then explodes."""

        class Growing(GradientDescent):
            def step(self, problem, state):
                size = 0.25 if state.iteration < 3 else 50.0
                return State(state.x - size * problem.subgradient(state.x), state.iteration + 1)

        result = lmd.run(Growing(), squares, column(1.0), iterations=40, divergence_factor=10)
        assert result.status == (Status.DIVERGED,) and result.iterations == 4
        assert_close(result.x, column(1 / 8))

    def test_minus_infinity_is_no_best_point(self):
        result = lmd.run(GradientDescent(1.0), lambda x: x.log().sum(dim=1), column(1.0, 5.0), iterations=1)
        assert result.status == (Status.NOT_FINITE, Status.FINISHED)
        assert result.x[0] == 1 and result.values[0] == 0

    def test_a_point_that_is_not_finite_is_a_failure_though_the_value_is(self):
        """max(., 0) hides the NaN of the point, and 0 would look like the best value."""

        class Breaking(GradientDescent):
            def step(self, problem, state):
                return State(state.x * math.nan, state.iteration + 1)

        result = lmd.run(Breaking(), lambda x: x.nan_to_num(0.0).square().sum(dim=1), column(2.0), iterations=3)
        assert result.status == (Status.NOT_FINITE,) and result.x == 2 and result.values == 4

    def test_divergence_is_measured_from_the_start(self):
        climbing = GradientDescent(1.5)  # x -> -2 x, values times 4
        assert lmd.run(climbing, squares, column(1.0), iterations=4, divergence_factor=1e3).ok
        result = lmd.run(climbing, squares, column(1.0, 1e-3), iterations=6, divergence_factor=1e3)
        assert result.status == (Status.DIVERGED, Status.FINISHED)
        assert result.iterations.tolist() == [5, 6]

    def test_adam_turns_nan_in_one_instance_alone(self):
        def powers(x):
            return x[:, 0].pow(torch.tensor([2.0, 1.5])[: len(x)])

        result = lmd.run(Adam(0.3), powers, column(1.0, 0.1), iterations=4)
        assert result.status == (Status.FINISHED, Status.NOT_FINITE)
        assert_close(result.x[:1], lmd.run(Adam(0.3), powers, column(1.0), iterations=4).x)
        assert result.x[1] == 0.1

    def test_a_start_without_a_value_is_refused(self):
        with pytest.raises(InputError, match=r"^x0: got a start where the value of instance \[1\] is not finite"):
            lmd.run(GradientDescent(0.1), lambda x: x.log().sum(dim=1), column(1.0, -1.0))


class TestCallbacks:
    def test_see_every_iterate_and_its_value(self):
        seen = []
        callback = lambda state, values: seen.append((state.iteration, state.x.clone(), values.clone()))  # noqa: E731
        result = lmd.run(GradientDescent(0.2), squares, column(1.0, 2.0), iterations=3, callbacks=[callback])
        assert [k for k, _, _ in seen] == [1, 2, 3]
        assert_close(torch.stack([values for _, _, values in seen]), result.history.values[1:])
        assert_close(seen[-1][1], result.x)

    def test_can_stop_the_run_and_all_of_them_are_called(self):
        calls = []
        callbacks = [lambda state, values: state.iteration == 2, lambda state, values: calls.append(state.iteration)]
        result = lmd.run(GradientDescent(0.2), squares, column(1.0), iterations=9, callbacks=iter(callbacks))
        assert result.status == (Status.STOPPED,) and result.iterations == 2
        assert calls == [1, 2]


class TestIterations:
    def test_default(self):
        assert lmd.run(GradientDescent(0.1), squares, column(1.0)).iterations == 100
        assert lmd.run(MirrorDescent(lmd.mirrors.Euclidean(), LearnedSteps(7)), squares, column(1.0)).iterations == 7

    def test_learned_steps_can_run_longer(self):
        solver = MirrorDescent(lmd.mirrors.Euclidean(), LearnedSteps(2))
        assert lmd.run(solver, squares, column(1.0), iterations=5).iterations == 5


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"solver": "gd"}, "solver: got str, expected an lmd.solvers.Solver"),
            ({"solver": GradientDescent}, "solver: got "),
            ({"problem": 3}, "problem: got int"),
            ({"problem": lambda x: x.sum()}, r"FunctionProblem.value\(x\): got shape \(\), expected shape \(2,\)"),
            ({"problem": lambda x: 1.0}, r"FunctionProblem.value\(x\): got float"),
            ({"x0": [[1.0]]}, "x0: got list, expected a torch tensor"),
            ({"x0": torch.ones(3)}, r"x0: got shape \(3,\), expected a batch"),
            ({"x0": torch.ones(2, 2, dtype=torch.int32)}, "x0: got torch.int32"),
            ({"x0": torch.tensor([[math.nan]])}, "x0: got 1 non-finite entries"),
            ({"iterations": 0}, "iterations: got 0, expected a whole number of 1 or more"),
            ({"iterations": 2.5}, "iterations: got 2.5"),
            ({"target_value": math.nan}, "target_value: got NaN"),
            (
                {"target_value": torch.zeros(3)},
                r"target_value: got shape \(3,\), expected one number, or one per instance",
            ),
            ({"target_value": "low"}, "target_value: got 'low', expected one number, or one per instance"),
            ({"divergence_factor": 0}, "divergence_factor: got 0"),
        ],
    )
    def test_is_refused_before_anything_runs(self, changes, words):
        arguments = {"solver": GradientDescent(0.1), "problem": squares, "x0": torch.ones(2, 2), **changes}
        with pytest.raises(InputError, match="^" + words) as caught:
            lmd.run(**arguments)
        assert "\n" not in str(caught.value)

    def test_a_start_that_does_not_fit_the_problem(self, least_squares):
        problem, x0 = least_squares
        for wrong, words in (
            (x0[:3], r"shape \(3, 2\), expected 7 instances"),
            (x0.float(), "torch.float32, expected torch.float64, the dtype of the problem's b"),
            (torch.ones(7, 3).double(), r"shape \(7, 3\), expected shape \(7, 2\)"),
        ):
            with pytest.raises(InputError, match="^x0: got " + words):
                lmd.run(GradientDescent(0.1), problem, wrong)


class TestSummary:
    def test_says_how_many_ended_how(self, bowls):
        problem = bowls([1.0, 1000.0, 1.0])
        result = lmd.run(GradientDescent(0.1), problem, torch.ones(3, 1).double(), iterations=30)
        lines = result.summary().splitlines()
        assert lines[0].startswith("3 instance(s), 30 iterations, ")
        assert lines[1].startswith("value: mean ")
        assert lines[2].startswith("2 finished: ran all its iterations")
        assert lines[3].startswith("1 diverged: ") and "take a smaller step" in lines[3]
        assert len(lines) == 4

    @pytest.mark.parametrize("status", Status)
    def test_every_status_has_a_message(self, status):
        assert len(status.message.split()) > 3 and "\n" not in status.message
        assert status.failed == (status in (Status.DIVERGED, Status.NOT_FINITE))


def test_wrappers_and_solvers_of_your_own_run_too():
    class Halving(Solver[State]):
        @property
        def step_cost(self):
            return {}

        def init(self, problem, x0):
            return State(x0, iteration=5)  # as one that goes on from somewhere

        def step(self, problem, state):
            return State(state.x / 2, state.iteration + 1, {"norm": state.x.abs().sum(dim=1)})

    result = lmd.run(BestSoFar(Halving()), squares, column(1.0), iterations=3)
    assert_close(result.x, column(1 / 8))
    assert_close(result.history.diagnostics["norm"][:3, 0], torch.tensor([1.0, 0.5, 0.25]).double())


@pytest.mark.parametrize("name", ["fgp", "denoise-7-fast"])
def test_iterations_that_nobody_looks_at_are_recorded_as_others_are(name):
    y = torch.rand(2, 2, 20, 24, generator=torch.Generator().manual_seed(0))
    problem, solver = lmd.problems.TVDenoising(y, torch.tensor([0.1, 0.5])), find(name)
    together = lmd.run(solver, problem, iterations=20)
    one_by_one = lmd.run(solver, problem, iterations=20, callbacks=[lambda state, values: False])
    torch.testing.assert_close(together.x, one_by_one.x)
    torch.testing.assert_close(together.history.values, one_by_one.history.values)
    torch.testing.assert_close(together.certificate.bound, one_by_one.certificate.bound)
    assert {name: counts.tolist() for name, counts in together.evaluations.items()} == {
        name: counts.tolist() for name, counts in one_by_one.evaluations.items()
    }
    assert bool((together.history.seconds.diff() > 0).all())


def test_iterations_that_fail_are_taken_one_by_one():
    problem = lmd.problems.TVDenoising(torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)), 0.3)
    result = lmd.run(lmd.solvers.FGP(), problem, iterations=20, divergence_factor=1e-12)
    stepped = lmd.run(lmd.solvers.FGP(), problem, iterations=20, divergence_factor=1e-12, target_value=-math.inf)
    assert result.status == stepped.status
    assert len(result.history) == len(stepped.history)


def test_points_outside_the_constraints_are_not_feasible():
    """In `lmd.run` as in `lmd.solve`: no value beside them goes without that word."""
    problem = lmd.problems.QuadraticProgram(
        torch.eye(2), torch.tensor([[-3.0, 0.5], [0.0, 0.0]]), A=torch.ones(1, 2), l=-0.1, u=0.5
    )
    result = lmd.run(lmd.solvers.PDHG(), problem, iterations=2)
    assert [status.name for status in result.status] == ["NOT_FEASIBLE", "FINISHED"]
    assert bool(result.values.isfinite().all()) and bool(result.violation[0] > 0)
