"""Instances that were drawn one by one, stacked into batches: the inverse of `Problem.select`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmd.core.batching import Part
from lmd.problems.base import Problem


class _DifferError(Exception):
    """Two instances have different data that no entry of a batch holds."""


def stack_instances(instances: Sequence[tuple[Problem, Tensor]]) -> list[tuple[Problem, Tensor]]:
    """Return batches of instances, each a batch of one with its start: as few as can be.

    Instances share a batch where they agree in everything that `select` leaves as it is, such as a matrix of the whole
    class. Which batch an instance is in, and where, depends on the data alone.

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
    """One problem of all the instances: what `select` repeats for copies of the first is joined, the rest is shared."""
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
    """A part with the attributes of all; what is computed on demand is computed again."""
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
    """One number for all instances, where it is one, or one for each `(B,)`."""
    return values[0] if len(set(values)) == 1 else torch.tensor(values, dtype=dtype, device="cpu")


def _is_cached(part: Part, name: str) -> bool:
    return isinstance(getattr(type(part), name, None), cached_property)


def _shared(value: Any, is_same: bool) -> Any:
    if not is_same:
        raise _DifferError
    return value
