"""Instances of a class with their optima: drawn, checked, and stacked into batches."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import Part
from lmd.errors import InputError
from lmd.guarantees.approximate import ACCURACY, approximate_optima, is_unbounded, relative_distance
from lmd.problems.base import Family, Problem, as_problem, check_values, offers

MAX_SOLVED_DISTANCE = 100 * ACCURACY  # what is left of the accuracy of optima where they are stored in float32
ZERO_MINIMUM, MAX_ZERO_SHARE = 1e-7, 0.05
"""A minimum counts as 0 below this share of how far values fall to it; a family with more of them is refused."""


@dataclass(frozen=True)
class Instances:
    """Problems with their starts and optima."""

    problem: Any
    x0: Tensor
    optima: Tensor
    minima: Tensor  # f(x*) `(B,)`
    duals: Tensor | None  # optimal dual points, where there are any

    @classmethod
    def solve(cls, problem: Any, x0: Tensor) -> Instances:
        """Return instances with optima by classical methods."""
        with torch.no_grad():
            optima, duals = approximate_optima(problem, x0)
            optima, duals = optima.to(x0), None if duals is None else duals.to(x0)
            minima, _ = problem.relaxed_value(optima)
        return cls(problem, x0, optima, minima, duals)

    @torch.no_grad()
    def is_solved(self) -> Tensor:
        """Return which of the optima are good to `ACCURACY`, by their gaps or gradients `(B,)`."""
        if offers(self.problem, ("minimiser",)):
            return torch.ones_like(self.minima, dtype=torch.bool)
        return relative_distance(self.problem, self.optima, self.duals) <= MAX_SOLVED_DISTANCE

    def errors(self, x: Tensor) -> Tensor:
        """Return (f(x) - f*) / |f*| `(B,)`, plus how far x is outside constraints relative to its size."""
        values, violation = self.problem.relaxed_value(x)
        size = torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=torch.finfo(x.dtype).tiny)
        rise = (values - self.minima).abs() if bool((violation > 0).any()) else (values - self.minima).clamp(min=0)
        found = rise / self.minima.abs().clamp(min=torch.finfo(x.dtype).tiny) + violation / size
        return torch.where(found.isnan(), torch.inf, found)

    def select(self, index: slice | Tensor) -> Instances:
        """Return some of the instances."""
        duals = None if self.duals is None else self.duals[index]
        problem = self.problem.select(index)
        return Instances(problem, self.x0[index], self.optima[index], self.minima[index], duals)


def check_minima(instances: Sequence[Instances]) -> None:
    """Raise for values that fall without bound, and for minima of 0, to which no gap is relative."""
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
    """Samples of given instances, with their optima as `reference`; a tenth of them is held out."""

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
    """Draw `count` instances of a family and their starts by the seed; of the shape and dtype of `like`."""
    sample = (family.held_out if held_out else family.sample)(count, torch.Generator().manual_seed(seed))
    if not (isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[1], Tensor)):
        raise InputError("family", f"a sample that is a {type(sample).__name__}", "(problem, x0), x0 a tensor")
    problem, x0 = as_problem(sample[0]), sample[1]
    if x0.ndim < 2 or len(x0) != count:
        raise InputError("family", f"a sample with x0 of shape {tuple(x0.shape)}", f"x0 ({count}, ...), as asked for")
    if not x0.dtype.is_floating_point or not bool(torch.isfinite(x0).all()):
        raise InputError("family", f"a sample with x0 of {x0.dtype}, or not finite", "floating-point numbers, finite")
    if like is not None and (x0.shape[1:], x0.dtype) != (like.shape[1:], like.dtype):
        given = f"samples of {tuple(like.shape[1:])} {like.dtype} and then {tuple(x0.shape[1:])} {x0.dtype}"
        raise InputError("family", given, "one shape and dtype for all samples")
    return problem, x0


def draw_separately(family: Family, seeds: Sequence[int], like: Tensor) -> list[tuple[Problem, Tensor]]:
    """Draw held-out instances one by one, each with its own seed, in as few batches as they stack into.

    Drawn together, instances may share data, such as one random matrix for all of a batch: they are not independent.
    """
    return stack_instances([draw(family, 1, seed, held_out=True, like=like) for seed in seeds])


def check_family(family: Family, seed: int) -> Tensor:
    """Raise for what would make learning pointless or wrong; return starts `(4, ...)` of the family."""
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
        _check_apart(problem, points, values)
        _check_convex(problem, x0, seed)
    return x0


def _finite_values(problem: Problem, points: Tensor) -> Tensor:
    values = problem.relaxed_value(points)[0]
    if not bool(torch.isfinite(check_values(problem, values, points)).all()):
        accepted = "finite ones near the starts, and a `domain` where there are constraints"
        raise InputError("family", "values that are not finite", accepted)
    return values


def _check_apart(problem: Problem, points: Tensor, values: Tensor) -> None:
    """Raise unless an instance alone has the value that it has in a batch."""
    try:
        alone = problem.select(slice(1, 2)).relaxed_value(points[1:2])[0]
        apart = alone.shape == (1,) and torch.allclose(alone, values[1:2], rtol=1e-4, atol=1e-6)
    except (RuntimeError, IndexError):
        apart = False
    if not apart:
        accepted = "`batched` to name every tensor with an entry for each instance, and values of each by itself"
        raise InputError("family", "an instance that alone has another value than among others", accepted)


def _points(problem: Problem, x0: Tensor, seed: int) -> Tensor:
    """Draw points around the starts, with another seed than that of the instances."""
    noise = torch.randn(
        x0.shape, generator=torch.Generator().manual_seed(seed + 1_000_003), dtype=x0.dtype, device="cpu"
    )
    x = x0 + noise * (1 + x0.abs().mean())
    return x if problem.domain is None else problem.domain.nearest(x)


def _check_convex(problem: Problem, x0: Tensor, seed: int) -> None:
    """Raise unless values along random segments are at most those of the chords, up to rounding."""
    for trial in range(8):
        one, two = (_points(problem, x0, seed + 2 * trial + end) for end in (0, 1))
        if trial % 2:
            two = one + 0.1 * (two - one)
        ends, middle = (problem.value(one) + problem.value(two)) / 2, problem.value((one + two) / 2)
        room = 64 * torch.finfo(x0.dtype).eps * (problem.value(one).abs() + problem.value(two).abs() + middle.abs())
        if bool((middle > ends + room).any()):
            accepted = "convex functions; between two points values must not rise above the line that joins them"
            raise InputError("family", "problems that are not convex", accepted)


def family_named(name: str) -> Family:
    """Import a family, or make one of a class without arguments, by its name.

    Args:
        name: "module:Family", of a module that can be imported from the working directory.
    """
    module, _, attribute = name.partition(":")
    accepted = "module:Family, such as my_module:MyFamily, to be imported from here"
    sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute) if module and attribute else None
    except (ImportError, AttributeError) as error:
        raise InputError("family", f"{name!r} ({error})", accepted) from None
    finally:
        sys.path.pop(0)
    family = found() if isinstance(found, type) and issubclass(found, Family) else found
    if not isinstance(family, Family):
        raise InputError("family", repr(name), accepted)
    return family


class _DifferError(Exception):
    """Two instances have different data that no entry of a batch holds."""


def stack_instances(instances: Sequence[tuple[Problem, Tensor]]) -> list[tuple[Problem, Tensor]]:
    """Stack instances, each a batch of one with its start, into as few batches as possible: the inverse of `select`.

    Instances share a batch where they agree in everything that `select` does not change, such as a matrix of the class.

    >>> from lmd.problems import LeastSquares
    >>> drawn = [(LeastSquares(W * torch.eye(2), torch.ones(1, 2)), torch.zeros(1, 2)) for W in (1, 2, 1)]
    >>> [len(x0) for _, x0 in stack_instances(drawn)]
    [2, 1]
    """
    groups: list[list[tuple[Problem, Tensor]]] = []
    for problem, x0 in instances:
        for group in groups:
            if _is_stackable([group[0][0], problem], x0.dtype):
                group.append((problem, x0))
                break
        else:
            groups.append([(problem, x0)])
    return [_stack_group(group) for group in groups]


def _stack_group(group: list[tuple[Problem, Tensor]]) -> tuple[Problem, Tensor]:
    problems, x0 = [problem for problem, _ in group], torch.cat([x0 for _, x0 in group])
    return (_stack(problems, x0.dtype) if len(group) > 1 else problems[0]), x0


def _is_stackable(problems: list[Problem], dtype: torch.dtype) -> bool:
    try:
        _stack(problems, dtype)
    except _DifferError:
        return False
    return True


def _stack(problems: list[Problem], dtype: torch.dtype) -> Problem:
    """Return one problem of all instances: what `select` repeats for copies of the first is joined, the rest shared."""
    copies: Problem = problems[0].select(torch.zeros(len(problems), dtype=torch.int64, device="cpu"))
    joined: Problem = _join(copies, problems, dtype)
    return joined


def _join(copies: Any, singles: Sequence[Any], dtype: torch.dtype) -> Any:
    first = singles[0]
    if any(type(single) is not type(first) for single in singles):
        raise _DifferError
    if isinstance(first, Tensor):
        if copies.shape == first.shape:
            return _shared(first, all(each is first or torch.equal(each, first) for each in singles))
        if any(each.shape != first.shape or each.dtype != first.dtype for each in singles):
            raise _DifferError
        return torch.cat(list(singles))
    if isinstance(first, Part):
        return _join_attributes(copies, singles, dtype)
    if isinstance(first, (tuple, list)):
        if any(len(single) != len(first) for single in singles):
            raise _DifferError
        return type(first)(_join(*pair, dtype) for pair in zip(copies, zip(*singles, strict=True), strict=True))
    return _shared(first, all(each is first or bool(each == first) for each in singles))


def _join_attributes(copies: Part, singles: Sequence[Part], dtype: torch.dtype) -> Part:
    """Return a part with the attributes of all, without cached properties."""
    names = [{name for name in vars(each) if not _is_cached(each, name)} for each in (*singles, copies)]
    if any(each != names[0] for each in names):
        raise _DifferError
    joined = copy.copy(copies)
    for name in set(vars(copies)) - names[0]:
        del vars(joined)[name]
    for name in names[0]:
        values = [getattr(each, name) for each in singles]
        if name in getattr(joined, "batched", ()) and all(type(value) is float for value in values):
            setattr(joined, name, _join_numbers(values, dtype))
        else:
            setattr(joined, name, _join(getattr(copies, name), values, dtype))
    return joined


def _join_numbers(values: Sequence[float], dtype: torch.dtype) -> float | Tensor:
    """Return one number where all are equal, or one for each instance `(B,)`."""
    return values[0] if len(set(values)) == 1 else torch.tensor(values, dtype=dtype, device="cpu")


def _is_cached(part: Part, name: str) -> bool:
    return isinstance(getattr(type(part), name, None), cached_property)


def _shared(value: Any, is_same: bool) -> Any:
    if not is_same:
        raise _DifferError
    return value
