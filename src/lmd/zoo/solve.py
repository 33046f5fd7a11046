"""One way to solve: `lmd.solve` picks the solver, goes through it without looking, and stops where it is proven."""

from __future__ import annotations

import ctypes
import math
import time
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count, check_positive
from lmd.errors import CapabilityError, InputError
from lmd.guarantees.certify import Watch, run
from lmd.guarantees.theorems import gap_certificate
from lmd.kernels import loop
from lmd.problems import derivatives
from lmd.problems.base import Problem, offers
from lmd.problems.compiled import model_of
from lmd.problems.composite import Composite
from lmd.problems.duality import project_onto_domains, relative_gap
from lmd.solvers.base import Solver, State, check_solver, check_start, in_full_precision
from lmd.solvers.result import Certificate, History, Result, Status
from lmd.solvers.stopping import LEAST, Looks, Marks, Stall, held_up
from lmd.solvers.tracking import take
from lmd.zoo.defaults import ladder, solver_for

MOST_ITERATIONS = 100_000

FLATTER = 3.2
"""The relative gap of points drawn flat is about this times the power 3/2 of what it is otherwise: FGP's of loop.c."""

MOST_REFINED = 5000
"""Iterations in float64 for what the rounding of x to float32 can hold up."""

SMALLEST = 1e-14
"""Rounding of sums in float64."""

FLAT, MIN_FLAT = 8, 40
"""Units of rounding by which values fall that have ended falling; and the iteration from which on that is looked at."""

WORDS = {
    1: Status.FINISHED,
    2: Status.TOLERANCE_REACHED,
    3: Status.STALLED,
    4: Status.STALLED,
    5: Status.NOT_FEASIBLE,
    6: Status.FINISHED,
}
"""What became of an instance, by the number that the compiled loop has for it; 4 is for what stalled by rounding for
sure, 5 for what violates its constraints."""


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
    refines = solver is None and start.dtype == torch.float32 and offers(problem, ("double", "select"))
    if solver is None:
        solver = solver_for(problem, tolerance)
    else:
        check_solver(solver, problem)
    if offers(problem, ("certified_gap",)):
        return _Whole(solver, problem, start, tolerance, limit, refines).run(warm)
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
    """Problems without a dual: certificates of strong convexity or of a bounded domain, looked at ever more seldom."""
    watch = _Watched(solver, problem, x0, tolerance)
    result = run(solver, problem, x0, iterations, callbacks=[watch])
    return replace(result, status=watch.judge(result))


class _Watched(Watch):
    """Ends a run where all instances are within the tolerance, or get no further."""

    def __init__(self, solver: Solver[Any], problem: Problem, x0: Tensor, tolerance: float) -> None:
        super().__init__(solver, problem, x0)
        self.tolerance, self.next, self.marks = tolerance, float(Looks.SHORTEST), Marks()

    def __call__(self, state: State, values: Tensor) -> bool:
        super().__call__(state, values)
        k = len(self.rows)
        if k < self.next:
            return False
        self.next = k + max(Looks.SHORTEST, Looks.GROWTH * k)
        near, ended = self._look(k, state, self.certificate())
        return bool((near | ended).all())

    def _look(self, k: int, state: State, certificate: Certificate) -> tuple[Tensor, Tensor]:
        """Which instances are within the tolerance, and which get no further: their bounds fall no more."""
        near = relative_gap(certificate.value, certificate.bound) <= self.tolerance
        still = (self.marks.look(k, certificate.bound) & certificate.proven) | self._is_flat(k)
        return near, still if state.settled is None else still | state.settled

    def _is_flat(self, k: int) -> Tensor:
        """Whose lowest value has not fallen by more than rounding since iteration k / 4."""
        values = torch.stack(self.values)
        before, lowest = (values[: n + 1].amin(dim=0) for n in (k // 4, k))
        fallen = before - lowest > FLAT * torch.finfo(values.dtype).eps * lowest.abs()
        return ~fallen if k >= MIN_FLAT else torch.zeros_like(fallen)

    def judge(self, result: Result) -> tuple[Status, ...]:
        """What became of each instance."""
        certificate, state = result.certificate, self.state
        assert certificate is not None and state is not None
        near, ended = self._look(len(self.rows), state, certificate)
        rows = zip(result.status, near.tolist(), ended.tolist(), certificate.proven.tolist(), strict=True)
        return tuple(_word(*row) for row in rows)


def _word(status: Status, is_near: bool, has_ended: bool, is_proven: bool) -> Status:
    if status.failed:
        return status
    if is_near:
        return Status.TOLERANCE_REACHED
    if has_ended:
        return Status.STALLED if is_proven else Status.NOT_PROVEN
    return Status.FINISHED


class _Report:
    """The `Report` of a solve, from the numbers that C reports."""

    def __init__(
        self, solved: loop.Solved, solver: Solver[Any], problem: Problem, start: Tensor, seconds: float
    ) -> None:
        self.solved, self.solver, self.problem, self.start, self.seconds = solved, solver, problem, start, seconds

    @cached_property
    def values(self) -> Tensor:
        return torch.tensor(self.solved.values, dtype=self.solved.x.dtype, device=self.solved.x.device)

    @cached_property
    def iterations(self) -> Tensor:
        return torch.tensor(self.solved.iterations, dtype=torch.int64, device=self.solved.x.device)

    @cached_property
    def evaluations(self) -> dict[str, Tensor]:
        return {name: each * self.iterations for name, each in self.solver.step_cost.items()}

    @cached_property
    def history(self) -> History:
        """The start and the end."""
        with torch.no_grad():
            values = torch.stack([self.problem.value(self.start), self.values])
        seconds = torch.tensor([0.0, self.seconds], dtype=torch.float64)
        return History(values=values, residuals=torch.full_like(values, torch.nan), seconds=seconds)

    def certificate(self, _: Result) -> Certificate:
        x, (values, gaps, rooms) = self.solved.x, self.solved.proven
        kind = ctypes.c_double if x.dtype == torch.float64 else ctypes.c_float
        pairs = zip(values, rooms, strict=True)
        reported = [max(kind(value).value, value + room) for value, room in pairs]  # no less than `values` or F(x)
        return gap_certificate(values, gaps, reported, x)


def _result(
    solved: loop.Solved, solver: Solver[Any], problem: Any, start: Tensor, begun: float, violation: Tensor | None = None
) -> Result:
    """What falls no further, or did not in many iterations, is stalled where that is rounding, or else out of luck."""
    seconds = time.perf_counter() - begun
    codes = solved.status
    words = tuple([WORDS[code] for code in codes])
    if not {1, 3, 6}.isdisjoint(codes):
        counts = zip(codes, solved.iterations, strict=True)
        ended = [code in (3, 6) or (code == 1 and count >= LEAST) for code, count in counts]
        gaps = torch.tensor(solved.gaps, dtype=torch.float64, device=start.device)
        triples = zip(words, ended, held_up(problem, solved.x, gaps, solved.dual).tolist(), strict=True)
        kinds = (Status.FINISHED, Status.STALLED)
        words = tuple(kinds[held] if has_ended else word for word, has_ended, held in triples)
    if not all(map(math.isfinite, solved.values)):
        pairs = zip(words, solved.values, strict=True)
        words = tuple(word if math.isfinite(value) else Status.NOT_FINITE for word, value in pairs)
    report = _Report(solved, solver, problem, start, seconds)
    return Result(
        x=solved.x,
        status=words,
        seconds=seconds,
        report=report,
        solver=solver,
        problem=problem,
        start=start,
        dual=solved.dual,
        certifier=report.certificate,
        violation=violation,
    )


def _refined(solved: loop.Solved, problem: Any, x0: Tensor, tolerance: float, limit: int) -> loop.Solved:
    """The same with what got stuck or stalled in float32 solved in float64 and rounded, where more is proven of that.

    Likewise what ran out of iterations where rounding can hold it up. What can be held up by the rounding of x gets
    fewer iterations: hardly more will be proven of it.
    """
    stuck, finished = (
        torch.tensor([code in codes for code in solved.status], dtype=torch.bool, device=solved.x.device)
        for codes in ((3, 4, 6), (1,))
    )
    if not bool((stuck | finished).any()):
        return solved
    gaps = torch.tensor(solved.gaps, dtype=torch.float64, device=solved.x.device)
    held = held_up(problem, solved.x, gaps, solved.dual)
    for part, most in ((stuck & ~held, limit), ((stuck | finished) & held, min(limit, MOST_REFINED))):
        if bool(part.any()):
            start = None if offers(problem, ("start",)) else x0[part].double()
            better = solve(problem.select(part).double(), tolerance / 2, x0=start, iterations=most)
            solved = solved if better.dual is None else _rounded(solved, problem, part, better, tolerance)
    return solved


def _rounded(solved: loop.Solved, problem: Any, part: Tensor, better: Result, tolerance: float) -> loop.Solved:
    """The same with answers in float64 to a part of it, rounded, where more is proven of these.

    Where they are not within the tolerance though they were before, it is the rounding of x that forbids it.
    """
    assert better.dual is not None
    x, dual, numbers = solved.x.clone(), solved.dual.clone(), list(solved.numbers)
    new_x, new_dual = better.x.to(x), better.dual.to(dual)
    values, new_gaps = problem.select(part).certified_gap(new_x, new_dual)
    far = relative_gap(values, new_gaps)
    for n, place in enumerate(part.nonzero().flatten().tolist()):
        row = slice(loop.REPORT * place, loop.REPORT * (place + 1))
        first, done, was, value, gap, room = numbers[row]
        if new_gaps[n] < gap:
            x[place], dual[place], value, gap, room = new_x[n], new_dual[n], float(values[n]), float(new_gaps[n]), 0.0
        ended = better.status[n] in (Status.TOLERANCE_REACHED, Status.STALLED)
        code = 2 if far[n] <= tolerance else 4 if ended else was
        numbers[row] = [first, done + int(better.iterations[n]), code, value, gap, room]
    return loop.Solved(x, dual, dual, numbers)


class _Best:
    """The points of which most is proven, instance by instance."""

    def __init__(self, state: State) -> None:
        assert state.dual_point is not None
        self.x, self.dual = state.x, state.dual_point
        self.value = torch.full((len(state.x),), torch.inf, dtype=torch.float64, device=state.x.device)
        self.gap = self.value

    def see(self, x: Tensor, dual: Tensor | None, value: Tensor, gap: Tensor) -> None:
        """Other points: they are better where more is proven of them, or where nothing is of either."""
        assert dual is not None
        better = (gap < self.gap) | (self.gap.isinf() & torch.isfinite(x.flatten(1)).all(dim=1))
        self.x, self.dual = take(better, x, self.x), take(better, dual, self.dual)
        self.value, self.gap = take(better, value, self.value), take(better, gap, self.gap)

    def solved(self, problem: Any, iterations: int, codes: Tensor) -> tuple[loop.Solved, Tensor | None]:
        """The report, and how far points violate the constraints: there, values are those beside them."""
        value, broken, violation = self.value, ~torch.isfinite(self.value), None
        if bool(broken.any()):
            beside, violation = problem.relaxed_value(self.x)
            value, codes = torch.where(broken, beside.double(), value), torch.where(broken, 5, codes)
            violation = torch.where(broken, violation, 0)
        rows = zip(codes.tolist(), value.tolist(), self.gap.tolist(), strict=True)
        numbers = [n for row in rows for n in (1.0, iterations, *row, 0.0)]
        return loop.Solved(self.x, self.dual, self.dual, numbers), violation


class _Whole:
    """A solve in progress."""

    def __init__(
        self, solver: Solver[Any], problem: Any, x0: Tensor, tolerance: float, iterations: int, refines: bool
    ) -> None:
        self.solver, self.problem, self.x0 = solver, problem, x0
        self.tolerance, self.limit = tolerance, iterations
        self.refines = refines
        """Whether what gets stuck in float32 is solved again in float64."""
        self.begun = time.perf_counter()

    def run(self, warm: Result | None) -> Result:
        dual = solved = violation = None
        if warm is not None and warm.dual is not None:
            solved = self.solver.follow(self.problem, warm.dual, warm.problem, self.tolerance, self.limit)
            dual = self._carried(warm.dual, warm.problem) if solved is None else None
        if solved is None:
            solved = self.solver.finish(self.problem, dual, self.tolerance, self.limit)
            solved = solved if solved is None else self._continued(self._levelled_where_open(solved))
        if solved is None:
            solved, violation = self._stepwise(dual)
        if self.refines:
            solved = _refined(solved, self.problem, self.x0, self.tolerance, self.limit)
        return _result(solved, self.solver, self.problem, self.x0, self.begun, violation)

    def _carried(self, dual: Tensor, before: Problem) -> Tensor | None:
        """The dual point of an earlier problem as one of this, if it is worth to start from."""
        alike = offers(self.problem, ("carried",)) and type(before) is type(self.problem)
        carried: Tensor | None = self.problem.carried(dual, before) if alike else self.problem.project_dual(dual)
        return None if carried is None else self.solver.worth(self.problem, self.x0, carried)

    def _stepwise(self, dual: Tensor | None) -> tuple[loop.Solved, Tensor | None]:
        """What steps lead to, and how far it violates the constraints.

        A gap of `SMALLEST` squared beside the value of the start is nothing: where a minimum is 0, the rounding of the
        data changes it by as much.
        """
        check_solver(self.solver, self.problem)
        state = self._begin(dual)
        if state.dual_point is None:
            given = f"{type(self.solver).__name__}, which keeps no dual point"
            raise CapabilityError("solver", given, "one that does, such as FGP or PDHG")
        done, stall, looks, best = 0, Stall(), Looks(), _Best(state)
        nothing = SMALLEST**2 * self.problem.value(self.x0).abs().double().nan_to_num(posinf=0)
        stride = min(self.limit, max(1, (self.solver.first_look or looks.SHORTEST) - state.iteration))
        while True:
            state = self.solver.advance(self.problem, state, stride)
            done += stride
            x, dual, value, gap = self._look(state)
            best.see(x, dual, value, gap)
            far = relative_gap(best.value, best.gap) / self.tolerance
            near = far <= 1
            stalled = stall.look(done, gap, self.problem, state.x, state.dual_point)
            stalled = stalled | (best.gap <= nothing)
            stalled = (stalled if state.settled is None else stalled | state.settled) & ~near
            stuck = stall.stuck & self.refines & ~near & ~stalled
            if bool((near | stalled | stuck).all()) or done >= self.limit:
                break
            left = (self.solver.horizon or 0) - state.iteration
            stride = left if left > 0 else looks.next_after(done, float(far[~near & ~stalled & ~stuck].max()))
            stride = min(stride, self.limit - done)
        codes = torch.where(near, 2, torch.where(stalled, 4, torch.where(stuck, 6, 1)))
        return best.solved(self.problem, done, codes)

    def _look(self, state: State) -> tuple[Tensor, Any, Tensor, Tensor]:
        """Points, dual points, values and gaps; drawn flat, where that can be and gets an instance to the tolerance."""
        x, dual = state.x, state.dual_point
        assert dual is not None
        value, gap = self.problem.certified_gap(x, dual)
        if not bool(torch.isfinite(value).all()) and isinstance(self.problem, Composite):
            x = take(torch.isfinite(value), x, project_onto_domains(self.problem, x))
            value, gap = self.problem.certified_gap(x, dual)
        x, dual, value, gap = self._levelled(x, dual, value, gap)
        far = relative_gap(value, gap)
        hopeful = (far > self.tolerance) & (FLATTER * far**1.5 <= self.tolerance)
        if not offers(self.problem, ("flattened",)) or not bool(hopeful.any()):
            return x, dual, value, gap
        flat = self.problem.flattened(dual)
        flat_value, flat_gap = self.problem.certified_gap(flat, dual)
        taken = hopeful & (relative_gap(flat_value, flat_gap) <= self.tolerance)
        x = torch.where(taken.reshape(-1, *[1] * (x.ndim - 1)), flat, x)
        return x, dual, torch.where(taken, flat_value, value), torch.where(taken, flat_gap, gap)

    def _continued(self, solved: loop.Solved) -> loop.Solved:
        """The same with more iterations, step by step, where a compiled solve ended for no rounding that explains it.

        In float32, what got stuck is solved in float64 in place of that.
        """
        if self.refines or 3 not in solved.status:
            return solved
        gaps = torch.tensor(solved.gaps, dtype=torch.float64, device=solved.x.device)
        stuck = torch.tensor([code == 3 for code in solved.status], dtype=torch.bool, device=solved.x.device)
        stuck &= ~held_up(self.problem, solved.x, gaps, solved.dual)
        if not bool(stuck.any()):
            return solved
        part, x0 = self.problem.select(stuck), self.x0[stuck]
        more, _ = _Whole(self.solver, part, x0, self.tolerance, self.limit, False)._stepwise(solved.dual[stuck])
        x, dual, numbers = solved.x.clone(), solved.dual.clone(), list(solved.numbers)
        for n, place in enumerate(stuck.nonzero().flatten().tolist()):
            row, new = (slice(loop.REPORT * i, loop.REPORT * (i + 1)) for i in (place, n))
            done = numbers[row][1] + more.numbers[new][1]
            if more.gaps[n] < solved.gaps[place]:
                x[place], dual[place], numbers[row] = more.x[n], more.dual[n], more.numbers[new]
            numbers[row.start + 1] = done
        return loop.Solved(x, dual, dual, numbers)

    def _levelled_where_open(self, solved: loop.Solved) -> loop.Solved:
        """The same at points that cost no variation, where a compiled solve did not prove enough and these do."""
        if all(code == 2 for code in solved.status) or not offers(self.problem, ("levelled",)):
            return solved
        value, gap = self.problem.certified_gap(solved.x, solved.dual)
        x, dual, value, gap = self._levelled(solved.x, solved.dual, value, gap)
        numbers, far = list(solved.numbers), relative_gap(value, gap)
        for n, code in enumerate(solved.status):
            if code == 2 or not gap[n] < solved.gaps[n]:
                x[n], dual[n] = solved.x[n], solved.dual[n]
                continue
            row = slice(loop.REPORT * n + 2, loop.REPORT * (n + 1))
            numbers[row] = [2 if far[n] <= self.tolerance else code, float(value[n]), float(gap[n]), 0.0]
        return loop.Solved(x, dual, dual, numbers)

    def _levelled(self, x: Tensor, dual: Any, value: Tensor, gap: Tensor) -> tuple[Tensor, Any, Tensor, Tensor]:
        """The same, at points that cost no variation where the dual points say that these are better.

        Where such points are minimisers whatever the weight is, 0 is the dual point that proves it.
        """
        if not offers(self.problem, ("levelled",)):
            return x, dual, value, gap
        level, within = self.problem.levelled(x, dual)
        within = within & (relative_gap(value, gap) > self.tolerance)
        if not bool(within.any()):
            return x, dual, value, gap
        for other in (dual, torch.zeros_like(dual)):
            level_value, level_gap = self.problem.certified_gap(level, other)
            taken = within & (level_gap < gap)
            x, dual = take(taken, level, x), take(taken, other, dual)
            value, gap = take(taken, level_value, value), take(taken, level_gap, gap)
        return x, dual, value, gap

    def _begin(self, dual: Tensor | None) -> State:
        if dual is None:
            state: State = self.solver.init(self.problem, self.x0)
            return state
        return self.solver.resume(self.problem, self.x0, dual)
