"""Instances of a class with their optima: how they are drawn, checked and stacked into batches.

The module also measures solvers on them: the relative gaps after each iteration, and the time of the iterations.
"""

from __future__ import annotations

import copy
import itertools
import math
import operator
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import Part
from lmd.errors import InputError
from lmd.guarantees.minima import ACCURACY, approximate_optima, is_unbounded, relative_distance, relative_gaps
from lmd.problems.base import Family, Problem, as_problem, check_values, offers
from lmd.solvers import Solver
from lmd.solvers.result import divergence_ceiling

MAX_SOLVED_DISTANCE = 100 * ACCURACY  # `ACCURACY` is partly lost if optima are stored in float32
ZERO_MINIMUM, MAX_ZERO_SHARE = 1e-7, 0.05
"""Minima below the first share of f(x0) - f* count as 0. The second is the largest accepted share of such minima."""

QUANTILE = 0.95  # the share of the instances that has to reach a target
MAX_GAP = 1e12  # solvers do not recover from a larger relative gap
MAX_TIMED = 2000.0  # milliseconds after which solves are not timed again


@dataclass(frozen=True)
class Instances:
    """A batch of problems with their starting points and optima."""

    problem: Any
    x0: Tensor
    optima: Tensor
    minima: Tensor  # f(x*) `(B,)`
    duals: Tensor | None  # optimal dual points, if there are any

    @classmethod
    def solve(cls, problem: Any, x0: Tensor) -> Instances:
        """Return instances whose optima are computed by classical methods."""
        with torch.no_grad():
            optima, duals = approximate_optima(problem, x0)
            optima, duals = optima.to(x0), None if duals is None else duals.to(x0)
            minima, _ = problem.relaxed_value(optima)
        return cls(problem, x0, optima, minima, duals)

    @torch.no_grad()
    def is_solved(self) -> Tensor:
        """Return whether each optimum is accurate to `MAX_SOLVED_DISTANCE`, by its gap or gradient `(B,)`."""
        if offers(self.problem, ("minimiser",)):
            return torch.ones_like(self.minima, dtype=torch.bool)
        return relative_distance(self.problem, self.optima, self.duals) <= MAX_SOLVED_DISTANCE

    def errors(self, x: Tensor) -> Tensor:
        """Return (f(x) - f*) / |f*| `(B,)`, plus the violation of constraints relative to the size of x."""
        return relative_gaps(self.problem, x, self.minima, self.minima)

    def select(self, index: slice | Tensor) -> Instances:
        """Return the instances with this index."""
        duals = None if self.duals is None else self.duals[index]
        problem = self.problem.select(index)
        return Instances(problem, self.x0[index], self.optima[index], self.minima[index], duals)


def check_minima(instances: Sequence[Instances]) -> None:
    """Raise an InputError if values fall without bound, or if minima are 0, so that no relative gap is defined."""
    small = []
    for each in instances:
        if not bool(torch.isfinite(each.minima).all()) or is_unbounded(each.optima, each.x0):
            accepted = "problems with minima; add a small multiple of ||x||^2, or constraints"
            raise InputError("family", "instances whose values fall without bound, as far as could be seen", accepted)
        fall = (each.problem.relaxed_value(each.x0)[0] - each.minima).abs()
        small.append(each.minima.abs() < ZERO_MINIMUM * fall)
    if float(torch.cat(small).double().mean()) > MAX_ZERO_SHARE:
        accepted = "problems with other minima, such as these with 1 added to their values"
        raise InputError("family", "minima of 0, to which no gap is small", accepted)


class ResampledFamily(Family):
    """A family that samples from given instances, with their optima as `reference`; a tenth of them is held out."""

    def __init__(self, instances: Instances, name: str) -> None:
        self.instances, self.name = instances, name
        self.n_held_out = max(1, len(instances.x0) // 10)

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        index = torch.randint(self.n_held_out, len(self.instances.x0), (batch,), generator=generator, device="cpu")
        return self._chosen(index)

    def held_out(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        return self._chosen(torch.arange(batch, device="cpu") % self.n_held_out)

    def _chosen(self, index: Tensor) -> tuple[Problem, Tensor]:
        part = self.instances.select(index)
        part.problem.reference = part.optima
        return part.problem, part.x0


def draw(
    family: Family, count: int, seed: int, *, held_out: bool = False, like: Tensor | None = None
) -> tuple[Problem, Tensor]:
    """Return `count` instances of a family and their starts, drawn with this seed; check them against `like`."""
    sample = (family.held_out if held_out else family.sample)(count, torch.Generator().manual_seed(seed))
    problem, x0 = check_sample(sample, count)
    if not x0.dtype.is_floating_point or not bool(torch.isfinite(x0).all()):
        raise InputError("family", f"a sample with x0 of {x0.dtype}, or not finite", "floating-point numbers, finite")
    if like is not None and (x0.shape[1:], x0.dtype) != (like.shape[1:], like.dtype):
        given = f"samples of {tuple(like.shape[1:])} {like.dtype} and then {tuple(x0.shape[1:])} {x0.dtype}"
        raise InputError("family", given, "one shape and dtype for all samples")
    return problem, x0


def check_sample(sample: Any, count: int) -> tuple[Problem, Tensor]:
    """Return the sample of a family; raise an InputError unless it is `count` instances and their starts."""
    if not (isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[1], Tensor)):
        raise InputError("family", f"a sample that is a {type(sample).__name__}", "(problem, x0), x0 a tensor")
    problem, x0 = as_problem(sample[0]), sample[1]
    if x0.ndim < 2 or len(x0) != count:
        raise InputError("family", f"a sample with x0 of shape {tuple(x0.shape)}", f"x0 ({count}, ...), as asked for")
    return problem, x0


def draw_separately(family: Family, seeds: Sequence[int], like: Tensor) -> list[tuple[Problem, Tensor]]:
    """Draw held-out instances one by one, each with its own seed, and stack them into as few batches as possible.

    Instances of one draw may share data, such as one random matrix per batch. Then they would not be independent.
    """
    return stack_instances([draw(family, 1, seed, held_out=True, like=like) for seed in seeds])


def check_family(family: Family, seed: int) -> Tensor:
    """Return four starts `(4, ...)` of a family; raise an InputError if learning on it would be pointless or wrong."""
    if not isinstance(family, Family):
        raise InputError("family", type(family).__name__, "an lmd.problems.Family")
    problem, x0 = draw(family, 4, seed)
    (again, x1), (other, _), _ = (draw(family, *given, like=x0) for given in ((4, seed), (4, seed + 1), (3, seed + 1)))
    with torch.no_grad():
        points = _points(problem, x0, seed)
        values, same, moved = (_finite_values(each, points) for each in (problem, again, other))
        if not (torch.equal(values, same) and torch.equal(x0, x1)):
            accepted = "one that takes all randomness from its generator, so that a seed gives the same sample twice"
            raise InputError("family", "a sample that differs for one seed", accepted)
        if torch.equal(values, moved):
            accepted = "one that takes its randomness from the generator it is given"
            raise InputError("family", "the same sample for two seeds", accepted)
        if not _is_separate(problem, points, values):
            accepted = "`batched` to name every tensor with an entry for each instance, and values of each by itself"
            raise InputError("family", "an instance that alone has another value than among others", accepted)
        _check_convex(problem, x0, seed)
    return x0


def _finite_values(problem: Problem, points: Tensor) -> Tensor:
    values = problem.relaxed_value(points)[0]
    if not bool(torch.isfinite(check_values(problem, values, points)).all()):
        accepted = "finite ones near the starts, and a `domain` where there are constraints"
        raise InputError("family", "values that are not finite", accepted)
    return values


def _is_separate(problem: Problem, points: Tensor, values: Tensor) -> bool:
    """Return whether an instance has the same value alone and in a batch."""
    try:
        alone = problem.select(slice(1, 2)).relaxed_value(points[1:2])[0]
        return alone.shape == (1,) and torch.allclose(alone, values[1:2], rtol=1e-4, atol=1e-6)
    except (RuntimeError, IndexError):
        return False


def _points(problem: Problem, x0: Tensor, seed: int) -> Tensor:
    """Return random points around the starts; their seed differs from the seed of the instances."""
    generator = torch.Generator().manual_seed(seed + 1_000_003)
    noise = torch.randn(x0.shape, generator=generator, dtype=x0.dtype, device="cpu")
    x = x0 + noise * (1 + x0.abs().mean())
    return x if problem.domain is None else problem.domain.nearest(x)


def _check_convex(problem: Problem, x0: Tensor, seed: int) -> None:
    """Raise an InputError if the value at the middle of a random segment is above the chord, beyond rounding."""
    for trial in range(8):
        one, two = (_points(problem, x0, seed + 2 * trial + end) for end in (0, 1))
        if trial % 2:
            two = one + 0.1 * (two - one)
        ends, middle = (problem.value(one) + problem.value(two)) / 2, problem.value((one + two) / 2)
        room = 64 * torch.finfo(x0.dtype).eps * (problem.value(one).abs() + problem.value(two).abs() + middle.abs())
        if bool((middle > ends + room).any()):
            accepted = "convex functions; between two points values must not rise above the line that joins them"
            raise InputError("family", "problems that are not convex", accepted)


class _DifferError(Exception):
    """Raised if instances differ in data that all instances of a batch share."""


def stack_instances(instances: Sequence[tuple[Problem, Tensor]]) -> list[tuple[Problem, Tensor]]:
    """Stack instances, each a batch of one with its start, into as few batches as possible. The inverse is `select`.

    Instances share a batch if everything that `select` does not change, such as a matrix of the class, is equal.

    >>> from lmd.problems import LeastSquares
    >>> drawn = [(LeastSquares(W * torch.eye(2), torch.ones(1, 2)), torch.zeros(1, 2)) for W in (1, 2, 1)]
    >>> [len(x0) for _, x0 in stack_instances(drawn)]
    [2, 1]
    """
    groups: list[list[tuple[Problem, Tensor]]] = []
    for single in instances:
        for group in groups:
            with suppress(_DifferError):
                _stack([group[0], single])
                group.append(single)
                break
        else:
            groups.append([single])
    return [group[0] if len(group) == 1 else _stack(group) for group in groups]


def _stack(group: list[tuple[Problem, Tensor]]) -> tuple[Problem, Tensor]:
    """Return one batch of all instances. Data that `select` repeats for each copy are joined, other data are shared."""
    problems, x0 = [problem for problem, _ in group], torch.cat([x0 for _, x0 in group])
    copies = problems[0].select(torch.zeros(len(group), dtype=torch.int64, device="cpu"))
    return _join(copies, problems, x0.dtype), x0


def _join(copies: Any, singles: Sequence[Any], dtype: torch.dtype, is_batched: bool = False) -> Any:
    """Join a part, tuple, tensor or value of all instances; `batched` numbers that differ become a tensor."""
    first, kind = singles[0], type(singles[0])
    if any(type(each) is not kind for each in singles):
        raise _DifferError
    if isinstance(first, Part):
        joined, batched = copy.copy(copies), getattr(copies, "batched", ())
        named, *others = (_attributes(each) for each in (copies, *singles))
        if any(other.keys() != named.keys() for other in others):
            raise _DifferError
        joined.__dict__ = {
            name: _join(value, [other[name] for other in others], dtype, name in batched)
            for name, value in named.items()
        }
        return joined
    if isinstance(first, (tuple, list)):
        if any(len(each) != len(first) for each in singles):
            raise _DifferError
        return kind(_join(*pair, dtype) for pair in zip(copies, zip(*singles, strict=True), strict=True))
    if isinstance(first, Tensor) and copies.shape != first.shape:
        if any(each.shape != first.shape or each.dtype != first.dtype for each in singles):
            raise _DifferError
        return torch.cat(list(singles))
    is_equal = torch.equal if isinstance(first, Tensor) else operator.eq
    if all(each is first or is_equal(each, first) for each in singles):
        return first
    if is_batched and kind is float:
        return torch.tensor(singles, dtype=dtype, device="cpu")
    raise _DifferError


def _attributes(part: Part) -> dict[str, Any]:
    """Return the attributes of a part by name, without cached properties."""
    kind = type(part)
    return {
        name: value for name, value in vars(part).items() if not isinstance(getattr(kind, name, None), cached_property)
    }


def clock() -> float:
    """Return the time in seconds; on one thread it is CPU time, which other programs do not disturb."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds(run: Callable[[int], object], counts: Iterable[int]) -> list[float]:
    """Return the seconds of each call `run(count)`, for one count after the other."""
    moments = [clock()]
    for count in counts:
        run(count)
        moments.append(clock())
    return [after - before for before, after in itertools.pairwise(moments)]


@torch.no_grad()
def curve(solver: Solver[Any], instances: Sequence[Instances], most: int, least: float) -> list[float]:
    """Return the 95% quantiles of the relative gaps after 0, 1, ..., `most` iterations, or until one reaches `least`.

    Quantiles are over the instances of all batches. Gaps of instances that `run` would stop as diverged are infinite.
    """
    states = [solver.init(each.problem, each.x0) for each in instances]
    ceilings, found = torch.cat([_ceiling(each) for each in instances]), list[float]()
    failed = torch.zeros_like(ceilings, dtype=torch.bool)
    while True:
        errors = torch.cat([each.errors(state.x) for each, state in zip(instances, states, strict=True)])
        failed |= errors > ceilings
        found.append(quantile(torch.where(failed, torch.inf, errors)))
        if not least < found[-1] <= MAX_GAP or len(found) > most:
            return found
        states = [solver.step(each.problem, state) for each, state in zip(instances, states, strict=True)]


def _ceiling(instances: Instances) -> Tensor:
    """Return the relative gaps `(B,)` above which `run` stops an instance as diverged."""
    values, _ = instances.problem.relaxed_value(instances.x0)
    size = instances.minima.abs().clamp(min=torch.finfo(values.dtype).tiny)
    return (divergence_ceiling(values) - instances.minima) / size


def reached(quantiles: list[float], target: float) -> int | None:
    """Return the first iteration with a quantile of at most the target; None if there is none."""
    return next((k for k, quantile in enumerate(quantiles) if quantile <= target), None)


def milliseconds(
    solver: Solver[Any], instances: Sequence[Instances], iterations: int, repeats: int = 7, most: float = MAX_TIMED
) -> float:
    """Return the median milliseconds of a solve without history; no repeat begins after `most` milliseconds."""
    return statistics.median(_times(solver, instances, iterations, repeats, most))


@torch.no_grad()
def _times(
    solver: Solver[Any], instances: Sequence[Instances], iterations: int, repeats: int, most: float
) -> list[float]:
    """Return the milliseconds of up to `repeats` solves. The first solve counts only if there is no other one."""
    times = []
    for _ in range(repeats + 1):
        begun = clock()
        for each in instances:
            state = solver.init(each.problem, each.x0)
            if iterations:
                solver.advance(each.problem, state, iterations)
        times.append(1e3 * (clock() - begun))
        if sum(times) > most:
            break
    return times[1:] or times


def speed(
    solver: Solver[Any], instances: Sequence[Instances], iterations: int, most: float = MAX_TIMED
) -> dict[str, float]:
    """Return `start` and `each`. A solve with k iterations takes about start + each k milliseconds.

    They follow from the fastest solves with 0 and with `iterations` iterations.
    """
    start, whole = (min(_times(solver, instances, count, 15, most)) for count in (0, iterations))
    return {"start": start, "each": max((whole - start) / iterations, 1e-6)}


def quantile(errors: Tensor) -> float:
    """Return the smallest number that at least 95% of the errors do not exceed."""
    return float(errors.double().kthvalue(math.ceil(QUANTILE * errors.numel())).values)
