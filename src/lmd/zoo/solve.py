"""One way to solve: `lmd.solve` picks the solver, goes through it without looking, and stops where it is proven."""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmd.checks import check_count, check_positive
from lmd.errors import CapabilityError, InputError
from lmd.guarantees.certify import Watch, run
from lmd.guarantees.theorems import gap_certificate
from lmd.kernels import loop
from lmd.problems import derivatives
from lmd.problems.base import Problem, offers
from lmd.problems.compiled import model_of
from lmd.problems.composite import relative_gap
from lmd.solvers.base import Solver, State, check_solver, check_start, in_full_precision
from lmd.solvers.certificate import Certificate
from lmd.solvers.result import History, Result, Status
from lmd.solvers.stopping import Looks, Stall, held_up
from lmd.zoo.defaults import ladder, solver_for

MOST_ITERATIONS = 100_000

FLATTER = 3.2
"""The relative gap of points drawn flat is about this times the power 3/2 of what it is otherwise: FGP's of loop.c."""

WORDS = {1: Status.FINISHED, 2: Status.TOLERANCE_REACHED, 3: Status.STALLED}
"""What became of an instance, by the number that the compiled loop has for it."""


@in_full_precision
def solve(
    problem: Problem,
    tolerance: float = 1e-3,
    *,
    solver: Solver[Any] | None = None,
    x0: Tensor | None = None,
    warm: Result | None = None,
    iterations: int = MOST_ITERATIONS,
    differentiable: bool = False,
) -> Result:
    """The minimisers of a batch of problems, each proven to be within `tolerance` of its minimum, relative to it.

    Nothing is recorded on the way: the history has the start and the end. For everything else there is `lmd.run`. An
    instance that gets no further in its precision, or runs out of iterations, says so in its status; the certificate
    of the result has what is proven in any case.

    Args:
        problem: A batch of problems.
        tolerance: The relative gap to be proven.
        solver: Any solver; None is chosen by the problem and the tolerance.
        x0: `(B, ...)`; None is the problem's own start.
        warm: A result on a problem of the same shape, to start from in place of x0, its dual point included.
        iterations: How many at most.
        differentiable: Give the answer derivatives by the data and weights of the problem that require them, by the
            implicit function theorem, for total variation models; nothing is recorded for them while it solves. See
            `lmd.problems.derivatives`.

    Returns:
        The answer, with its status and certificate.

    >>> import lmd, torch
    >>> noisy = torch.rand(1, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> result = lmd.solve(lmd.problems.TVDenoising(noisy, weight=0.3), tolerance=1e-4)
    >>> result.status[0].name, bool(result.certificate.bound <= 1e-4 * result.values)
    ('TOLERANCE_REACHED', True)
    >>> lmd.solve(lmd.problems.TVDenoising(noisy, weight=0.29), tolerance=1e-4, warm=result).status[0].name
    'TOLERANCE_REACHED'
    >>> weight = torch.tensor(0.3, requires_grad=True)
    >>> result = lmd.solve(lmd.problems.TVDenoising(noisy, weight), tolerance=1e-6, differentiable=True)
    >>> result.x.square().mean().backward()
    >>> bool(weight.grad < 0)
    True
    """
    check_positive("tolerance", tolerance)
    check_count("iterations", iterations)
    if not isinstance(problem, Problem):
        raise InputError("problem", type(problem).__name__, "an lmd.problems.Problem; for a function there is lmd.run")
    if differentiable:
        derivatives.check(problem)
    begun, start = time.perf_counter(), _start(problem, x0, warm)
    model = model_of(problem) if solver is None and warm is None else None
    if model is not None:  # the usual case: all of it in one compiled call, of which nothing could be recorded
        chosen = ladder(model.noisy.dtype)
        result = _result(chosen.climb(model, tolerance, iterations), chosen, problem, start, begun)
    else:
        with torch.no_grad():
            result = _by(solver, problem, start, tolerance, iterations, warm)
    return _recorded(problem, result) if differentiable else result


def _by(
    solver: Solver[Any] | None, problem: Problem, start: Tensor, tolerance: float, limit: int, warm: Result | None
) -> Result:
    """The answer of a solver; None is chosen."""
    if solver is None:
        solver = solver_for(problem, tolerance)
    else:
        check_solver(solver, problem)
    if offers(problem, ("certified_gap",)):
        return _Whole(solver, problem, start, tolerance, limit).run(warm)
    return _watched(solver, problem, start, tolerance, limit)


def _recorded(problem: Problem, result: Result) -> Result:
    """The result with derivatives of x; its certificate is about the numbers alone."""
    prove = result.certifier
    if prove is None or result.dual is None:
        raise CapabilityError("problem", f"{type(problem).__name__}, which has no dual points", "one that has them")
    return replace(
        result, x=derivatives.differentiate(problem, result.x, result.dual), certifier=lambda _: prove(result)
    )


def _start(problem: Any, x0: Tensor | None, warm: Result | None) -> Tensor:
    if x0 is not None and warm is not None:
        raise InputError("x0", "points beside warm", "one of them")
    if not isinstance(warm, Result | None):
        raise InputError("warm", type(warm).__name__, "a result of lmd.solve")
    given = x0 if warm is None else warm.x
    if given is not None:
        with torch.no_grad():
            return check_start(problem, given).detach()
    if not offers(problem, ("start",)):
        raise CapabilityError("problem", f"{type(problem).__name__}, which has no start", "one that has, or x0")
    start: Tensor = problem.start()  # which was looked at when the problem was made
    if torch._C._functorch.is_gradtrackingtensor(start):
        raise InputError("problem", "tensors inside torch.func.grad", "torch.autograd.grad, and differentiable=True")
    return start.detach() if start.requires_grad else start


def _watched(solver: Solver[Any], problem: Problem, x0: Tensor, tolerance: float, iterations: int) -> Result:
    """Problems without a dual: certificates of their strong convexity, looked at every ten iterations."""

    def near(certificate: Certificate) -> Tensor:
        return certificate.bound <= tolerance * certificate.lower_bound.abs()

    watch = Watch(solver, problem, x0, stop_when=lambda certificate: bool(near(certificate).all()))
    result = run(solver, problem, x0, min(iterations, 1000), callbacks=[watch])
    proven = [False] * len(x0) if result.certificate is None else near(result.certificate).tolist()
    pairs = zip(result.status, proven, strict=True)
    return replace(result, status=tuple(Status.TOLERANCE_REACHED if done else status for status, done in pairs))


class _Report:
    """What is made of a solve when it is asked for: fields of its result, from the numbers that C reports."""

    def __init__(self, solved: loop.Solved) -> None:
        self.solved = solved

    def values(self, result: Result) -> Tensor:
        return torch.tensor(self.solved.values, dtype=result.x.dtype, device=result.x.device)

    def iterations(self, result: Result) -> Tensor:
        return torch.tensor(self.solved.iterations, dtype=torch.int64, device=result.x.device)

    def evaluations(self, result: Result) -> dict[str, Tensor]:
        return {name: each * result.iterations for name, each in result.solver.step_cost.items()}

    def history(self, result: Result) -> History:
        """The start and the end."""
        with torch.no_grad():
            values = torch.stack([result.problem.value(result.start), result.values])
        seconds = torch.tensor([0.0, result.seconds], dtype=torch.float64)
        return History(values=values, residuals=torch.full_like(values, torch.nan), seconds=seconds)

    def proof(self, result: Result) -> Certificate:
        x, (values, gaps, rooms) = result.x, self.solved.proven
        kind = ctypes.c_double if x.dtype == torch.float64 else ctypes.c_float
        pairs = zip(values, rooms, strict=True)
        reported = [max(kind(value).value, value + room) for value, room in pairs]  # no less than `values` or F(x)
        return gap_certificate(values, gaps, reported, x)


def _result(solved: loop.Solved, solver: Solver[Any], problem: Any, start: Tensor, begun: float) -> Result:
    """What falls no further is stalled where that is rounding, or else out of luck."""
    seconds, made = time.perf_counter() - begun, _Report(solved)
    words = tuple([WORDS[code] for code in solved.status])
    if Status.STALLED in words:
        gaps = torch.tensor(solved.gaps, dtype=torch.float64, device=start.device)
        pairs = zip(words, held_up(problem, solved.x, gaps).tolist(), strict=True)
        words = tuple(Status.FINISHED if word is Status.STALLED and not held else word for word, held in pairs)
    return Result.later(
        made,
        x=solved.x,
        status=words,
        seconds=seconds,
        solver=solver,
        problem=problem,
        start=start,
        dual=solved.dual,
        certifier=made.proof,
    )


class _Whole:
    """A solve in progress."""

    def __init__(self, solver: Solver[Any], problem: Any, x0: Tensor, tolerance: float, iterations: int) -> None:
        self.solver, self.problem, self.x0 = solver, problem, x0
        self.tolerance, self.limit = tolerance, iterations
        self.begun = time.perf_counter()

    def run(self, warm: Result | None) -> Result:
        dual = solved = None
        if warm is not None and warm.dual is not None:
            solved = self.solver.follow(self.problem, warm.dual, warm.problem, self.tolerance, self.limit)
            dual = self._carried(warm.dual, warm.problem) if solved is None else None
        if solved is None:
            solved = self.solver.finish(self.problem, dual, self.tolerance, self.limit)
        solved = self._stepwise(dual) if solved is None else solved
        return _result(solved, self.solver, self.problem, self.x0, self.begun)

    def _carried(self, dual: Tensor, before: Problem) -> Tensor | None:
        """The dual point of an earlier problem as one of this, if it is worth to start from."""
        alike = offers(self.problem, ("carried",)) and type(before) is type(self.problem)
        carried: Tensor | None = self.problem.carried(dual, before) if alike else self.problem.project_dual(dual)
        return None if carried is None else self.solver.worth(self.problem, self.x0, carried)

    def _stepwise(self, dual: Tensor | None) -> loop.Solved:
        check_solver(self.solver, self.problem)
        state = self._begin(dual)
        if state.dual_point is None:
            given = f"{type(self.solver).__name__}, which keeps no dual point"
            raise CapabilityError("solver", given, "one that does, such as FGP or PDHG")
        done, stall, looks = 0, Stall(), Looks()
        stride = min(self.limit, max(1, (self.solver.first_look or looks.SHORTEST) - state.iteration))
        while True:
            state = self.solver.advance(self.problem, state, stride)
            done += stride
            x, value, gap = self._look(state)
            far = relative_gap(value, gap) / self.tolerance
            near = far <= 1
            stalled = stall.look(done, gap, self.problem, state.x) & ~near
            if bool((near | stalled).all()) or done >= self.limit:
                break
            left = (self.solver.horizon or 0) - state.iteration
            stride = left if left > 0 else looks.next_after(done, float(far[~near & ~stalled].max()))
            stride = min(stride, self.limit - done)
        codes = torch.where(near, 2, torch.where(stalled, 3, 1))
        rows = zip(codes.tolist(), value.tolist(), gap.tolist(), strict=True)
        return loop.Solved(x, state.dual_point, state.dual_point, [n for row in rows for n in (1.0, done, *row, 0.0)])

    def _look(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """The points, their values and gaps; drawn flat, where that can be and gets an instance to the tolerance."""
        x, dual = state.x, state.dual_point
        value, gap = self.problem.certified_gap(x, dual)
        far = relative_gap(value, gap)
        hopeful = (far > self.tolerance) & (FLATTER * far**1.5 <= self.tolerance)
        if not offers(self.problem, ("flattened",)) or not bool(hopeful.any()):
            return x, value, gap
        flat = self.problem.flattened(dual)
        flat_value, flat_gap = self.problem.certified_gap(flat, dual)
        taken = hopeful & (relative_gap(flat_value, flat_gap) <= self.tolerance)
        x = torch.where(taken.reshape(-1, *[1] * (x.ndim - 1)), flat, x)
        return x, torch.where(taken, flat_value, value), torch.where(taken, flat_gap, gap)

    def _begin(self, dual: Tensor | None) -> State:
        if dual is None:
            state: State = self.solver.init(self.problem, self.x0)
            return state
        return self.solver.resume(self.problem, self.x0, dual)
