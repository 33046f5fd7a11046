"""The conformance suite of solvers: answers are the same for all memory layouts and batches. Needs pytest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.result import Result
from lmd.solvers.run import run
from lmd.testing.cases import LAYOUTS, Conformance, Suite, default_dtype

Answer = dict[str, Tensor]


class SolverConformance(Suite):
    """Inherit this class, define a solver and a small problem of two or more instances, and run pytest.

        class TestMySolver(SolverConformance):
            def make_solver(self, dtype):
                return MySolver().to(dtype)

            def data(self, dtype):
                return {"noisy": torch.rand(2, 1, 30, 34, dtype=dtype, generator=torch.Generator().manual_seed(0))}

            def make_problem(self, data):
                return TVDenoising(data["noisy"])

    Solver and data should be the same each time. Tests compare the points, their values in each iteration, the dual
    points, the certified bounds if `run` returns certificates, and the number of iterations, all up to rounding.
    """

    iterations: ClassVar[int] = 4  # few, so that rounding does not grow
    tolerance: ClassVar[dict[torch.dtype, float]] = Conformance.tolerance

    def make_solver(self, dtype: torch.dtype) -> Solver[Any]:
        """Return the solver under test, with parameters of this dtype."""
        raise NotImplementedError("say which solver to test")

    def data(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the tensors that the problem is made of, by name."""
        raise NotImplementedError("say what the problem is made of")

    def make_problem(self, data: dict[str, Tensor]) -> Problem:
        """Return a problem of two or more instances, made of these tensors."""
        raise NotImplementedError("say what the problem is")

    def start(self, problem: Problem, data: dict[str, Tensor]) -> Tensor:
        """Return starting points `(B, ...)`: `data["x0"]` if given, otherwise those of the problem."""
        return data["x0"] if "x0" in data else problem.start()  # type: ignore[attr-defined]

    def run(self, solver: Solver[Any], problem: Problem, x0: Tensor, iterations: int) -> Result:
        """Run the solver; override this to run with certificates."""
        return run(solver, problem, x0, iterations)

    # Memory.

    def test_the_layout_in_memory_does_not_matter(self, dtype: torch.dtype) -> None:
        data = self.data(dtype)
        expected = self._solve(data)
        for layout, lay in LAYOUTS.items():
            self._same(self._solve({name: lay(x) for name, x in data.items()}, lay), expected, layout)

    def test_instances_that_share_memory_are_instances(self, dtype: torch.dtype) -> None:
        data = self.data(dtype)
        shared = set(self.make_problem(data).batched) | {"x0"}

        def expand(x: Tensor) -> Tensor:
            return x[:1].expand(x.shape)

        expanded = {name: expand(x) if name in shared else x for name, x in data.items()}
        apart = {name: x.contiguous() for name, x in expanded.items()}
        expected = self._solve(apart, lambda x: expand(x).contiguous())
        self._same(self._solve(expanded, expand), expected, "expanded")

    # Dtypes.

    def test_the_default_dtype_does_not_matter(self, dtype: torch.dtype) -> None:
        with default_dtype(torch.float32):
            expected = self._solve(self.data(dtype))
        with default_dtype(torch.float64):
            found = self._solve(self.data(dtype))
        for name, numbers in expected.items():
            assert found[name].dtype == numbers.dtype, f"{name} is {found[name].dtype}, not {numbers.dtype}"
        assert expected["x"].dtype == expected["values"].dtype == dtype
        self._same(found, expected, "with a default of float64")

    def test_float32_agrees_with_float64(self) -> None:
        double = {name: x.double() for name, x in self._solve(self.data(torch.float32)).items()}
        exact = {name: x.double() for name, x in self._solve(self.data(torch.float64)).items()}
        self._same(double, exact, "float32", 10 * self.tolerance[torch.float32])

    def test_a_solver_of_another_dtype_solves_or_says_so_in_one_line(self, dtype: torch.dtype) -> None:
        other = torch.float64 if dtype == torch.float32 else torch.float32
        problem, x0, _ = self._begin(self.data(dtype))
        try:
            result = self.run(self.make_solver(other), problem, x0, self.iterations)
        except InputError as error:
            said = str(error)
        else:
            assert result.x.dtype == dtype
            return
        assert "\n" not in said and str(dtype) in said and str(other) in said, said

    # Batches and steps.

    def test_an_instance_of_a_batch_is_the_instance_alone(self, dtype: torch.dtype) -> None:
        problem, x0, solver = self._begin(self.data(dtype))
        assert len(x0) > 1, "a problem of one instance cannot show whether instances mix"
        together = self._answer(self.run(solver, problem, x0, self.iterations))
        for i in range(len(x0)):
            alone = self._answer(self.run(solver, problem.select(i), x0[i : i + 1], self.iterations))
            of_batch = {name: x[:, i : i + 1] if name == "history" else x[i : i + 1] for name, x in together.items()}
            self._same(alone, of_batch, f"instance {i}")

    def test_many_steps_at_once_are_the_steps_one_by_one(self, dtype: torch.dtype) -> None:
        problem, x0, solver = self._begin(self.data(dtype))
        count = self.iterations if solver.horizon is None else solver.horizon + 2
        with torch.no_grad():
            single = begun = solver.init(problem, x0)
            spent: Counter[str] = Counter()
            for _ in range(count):
                single = solver.step(problem, single)
                spent.update({name: int(counts.sum()) for name, counts in single.evaluations.items()})
            whole = solver.advance(problem, begun, count)
        assert whole.iteration == single.iteration == count
        told = Counter({name: int(counts.sum()) for name, counts in whole.evaluations.items()})
        looked = told.pop("value", 0), spent.pop("value", 0)  # a wrapper may evaluate only the last point
        assert looked[0] <= looked[1]
        assert {name: n for name, n in told.items() if n} == {name: n for name, n in spent.items() if n}
        self._same(_points(whole), _points(single), f"{count} steps at once")

    # Helpers.

    def _begin(self, data: dict[str, Tensor]) -> tuple[Problem, Tensor, Solver[Any]]:
        """Return the problem of these data, its start and the solver."""
        problem = self.make_problem(data)
        x0 = self.start(problem, data)
        return problem, x0, self.make_solver(x0.dtype)

    def _solve(self, data: dict[str, Tensor], lay: Callable[[Tensor], Tensor] | None = None) -> Answer:
        """Solve the problem of these data from its start in the layout `lay`; return the answer."""
        problem, x0, solver = self._begin(data)
        x0 = x0 if lay is None else lay(x0)
        before = {**data, "the start": x0}
        copies = {name: x.clone() for name, x in before.items()}
        result = self.run(solver, problem, x0, self.iterations)
        for name, x in before.items():
            assert torch.equal(x, copies[name]), f"{name} was written to"
        return self._answer(result)

    def _answer(self, result: Result) -> Answer:
        bound = None if result.certificate is None else result.certificate.bound
        found = {"x": result.x, "values": result.values, "history": result.history.values, "dual": result.dual}
        found |= {"iterations": result.iterations, "bound": bound}
        return {name: answer for name, answer in found.items() if answer is not None}

    def _same(self, found: Mapping[str, Tensor], expected: Answer, what: str, allowed: float | None = None) -> None:
        assert set(found) == set(expected)
        within = allowed or self.tolerance[expected["x"].dtype]
        for name, numbers in found.items():
            try:
                assert_close(numbers, expected[name], rtol=within, atol=within)
            except AssertionError as error:
                raise AssertionError(f"{what}: {name} is another: {error}") from None


def _points(state: State) -> Answer:
    dual = getattr(state, "dual", None)
    return {"x": state.x} if dual is None else {"x": state.x, "dual": dual}
