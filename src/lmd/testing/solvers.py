"""The conformance suite: one answer of a solver, however numbers lie in memory and whatever computes. Needs pytest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lmd import kernels
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.result import Result
from lmd.solvers.run import run
from lmd.testing.cases import default_dtype, each_dtype

Answer = dict[str, Tensor]


def _permuted(x: Tensor, order: list[int]) -> Tensor:
    """Return the same numbers such that the last of the axes in `order` are neighbours in memory."""
    back = [order.index(axis) for axis in range(x.ndim)]
    return x.permute(order).contiguous().permute(back)


# The same numbers in other places of memory, as slices, numpy and image libraries leave them.
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels last": lambda x: _permuted(x, [0, *range(2, x.ndim), 1]) if x.ndim > 2 else x,
    "reversed": lambda x: _permuted(x, list(reversed(range(x.ndim)))),
    "transposed": lambda x: _permuted(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2]) if x.ndim > 1 else x,
    "every second": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "part of a larger one": lambda x: torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape),
}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Use this many threads for everything, however little work it is."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kernels, "SMALL", 0)
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def compiled(build: str | None) -> Iterator[None]:
    """Use one of the builds of the kernels, or none of them."""
    code = None if build is None else kernels.load(build)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "library", lambda: code)
        yield


class SolverConformance:
    """Inherit this, say how to make the solver and a small problem of two or more instances, and run pytest.

        class TestMySolver(SolverConformance):
            def make_solver(self, dtype):
                return MySolver().to(dtype)

            def data(self, dtype):
                return {"noisy": torch.rand(2, 1, 30, 34, dtype=dtype, generator=torch.Generator().manual_seed(0))}

            def make_problem(self, data):
                return TVDenoising(data["noisy"])

    Both should be the same each time. Answers are the points, their values in each iteration, the dual points, the
    certified bounds where `run` is `lmd.run`, and the number of iterations; they are compared to rounding.
    """

    iterations: ClassVar[int] = 4  # so few that rounding does not grow
    # Relative and absolute error allowed where two computations of one number are compared.
    tolerance: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-4, torch.float64: 1e-9}

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
        """Return starting points `(B, ...)`: the problem's own, unless `data` has some with the name x0."""
        return data["x0"] if "x0" in data else problem.start()  # type: ignore[attr-defined]

    def run(self, solver: Solver[Any], problem: Problem, x0: Tensor, iterations: int) -> Result:
        """Run the solver; override this to run with certificates."""
        return run(solver, problem, x0, iterations)

    # Memory.

    @each_dtype
    def test_the_layout_in_memory_does_not_matter(self, dtype: torch.dtype) -> None:
        data = self.data(dtype)
        expected = self._solve(data)
        for layout, lay in LAYOUTS.items():
            self._same(self._solve({name: lay(x) for name, x in data.items()}, lay), expected, layout)

    @each_dtype
    def test_instances_that_share_memory_are_instances(self, dtype: torch.dtype) -> None:
        data = self.data(dtype)
        shared = set(self.make_problem(data).batched) | {"x0"}

        def expand(x: Tensor) -> Tensor:
            return x[:1].expand(x.shape)

        expanded = {name: expand(x) if name in shared else x for name, x in data.items()}
        apart = {name: x.contiguous() for name, x in expanded.items()}
        expected = self._solve(apart, lambda x: expand(x).contiguous())
        self._same(self._solve(expanded, expand), expected, "expanded")

    # Kinds of numbers.

    @each_dtype
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

    @each_dtype
    def test_a_solver_of_another_dtype_solves_or_says_so_in_one_line(self, dtype: torch.dtype) -> None:
        other = torch.float64 if dtype == torch.float32 else torch.float32
        data = self.data(dtype)
        problem = self.make_problem(data)
        x0 = self.start(problem, data)
        try:
            result = self.run(self.make_solver(other), problem, x0, self.iterations)
        except InputError as error:
            said = str(error)
        else:
            assert result.x.dtype == dtype
            return
        assert "\n" not in said and str(dtype) in said and str(other) in said, said

    # What computes.

    def test_the_kernels_do_not_matter(self) -> None:
        data = self.data(torch.float32)
        with compiled(None):
            expected, points = self._solve(data), self._advanced(data)
        for build in kernels.BUILDS.get(torch.backends.cpu.get_cpu_capability(), (kernels.PLAIN)):
            with compiled(build):
                self._same(self._solve(data), expected, build)
                self._same(self._advanced(data), points, f"{build}, all steps at once")

    def test_the_threads_do_not_matter(self) -> None:
        data = self.data(torch.float32)
        with threads(1):
            expected = self._advanced(data)
        with threads(2):
            self._same(self._advanced(data), expected, "two threads")

    # Batches and steps.

    @each_dtype
    def test_an_instance_of_a_batch_is_the_instance_alone(self, dtype: torch.dtype) -> None:
        data = self.data(dtype)
        problem = self.make_problem(data)
        x0, solver = self.start(problem, data), self.make_solver(dtype)
        assert len(x0) > 1, "a problem of one instance cannot show whether instances mix"
        together = self._answer(self.run(solver, problem, x0, self.iterations))
        for i in range(len(x0)):
            alone = self._answer(self.run(solver, problem.select(i), x0[i : i + 1], self.iterations))
            of_batch = {name: x[:, i : i + 1] if name == "history" else x[i : i + 1] for name, x in together.items()}
            self._same(alone, of_batch, f"instance {i}")

    @each_dtype
    def test_many_steps_at_once_are_the_steps_one_by_one(self, dtype: torch.dtype) -> None:
        data = self.data(dtype)
        problem = self.make_problem(data)
        solver = self.make_solver(dtype)
        count = self.iterations if solver.horizon is None else solver.horizon + 2
        with torch.no_grad():
            single = begun = solver.init(problem, self.start(problem, data))
            spent: Counter[str] = Counter()
            for _ in range(count):
                single = solver.step(problem, single)
                spent.update({name: int(counts.sum()) for name, counts in single.evaluations.items()})
            whole = solver.advance(problem, begun, count)
        assert whole.iteration == single.iteration == count
        told = Counter({name: int(counts.sum()) for name, counts in whole.evaluations.items()})
        looked = told.pop("value", 0), spent.pop("value", 0)  # a wrapper may look at the end alone
        assert looked[0] <= looked[1]
        assert {name: n for name, n in told.items() if n} == {name: n for name, n in spent.items() if n}
        self._same(_points(whole), _points(single), f"{count} steps at once")

    # What the tests above share.

    def _solve(self, data: dict[str, Tensor], lay: Callable[[Tensor], Tensor] | None = None) -> Answer:
        """Return the answer of a run on a problem of these data, with its start in the layout `lay`."""
        problem = self.make_problem(data)
        x0 = self.start(problem, data)
        x0 = x0 if lay is None else lay(x0)
        before = {**data, "the start": x0}
        copies = {name: x.clone() for name, x in before.items()}
        result = self.run(self.make_solver(x0.dtype), problem, x0, self.iterations)
        for name, x in before.items():
            assert torch.equal(x, copies[name]), f"{name} was written to"
        return self._answer(result)

    def _advanced(self, data: dict[str, Tensor]) -> Answer:
        """Return the points after all iterations at once."""
        problem = self.make_problem(data)
        x0 = self.start(problem, data)
        solver = self.make_solver(x0.dtype)
        with torch.no_grad():
            return _points(solver.advance(problem, solver.init(problem, x0), self.iterations))

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
