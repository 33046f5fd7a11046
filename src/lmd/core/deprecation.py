"""What is going away says so once, with what to use instead and the version that no longer has it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(instead: str, removal: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function or a class that version `removal` no longer has; RELEASING.md has the policy.

    Args:
        instead: What to use.
        removal: The first version that no longer has it.

    >>> @deprecated("lmd.solve", removal="2.0")
    ... def solve_it(x):
    ...     return x
    >>> solve_it.__deprecated__
    'solve_it goes away in lmd 2.0: use lmd.solve'
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__qualname__

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            say_deprecated(name, instead, removal)
            return function(*args, **kwargs)

        setattr(call, "__deprecated__", _line(name, instead, removal))  # noqa: B010
        return call

    return mark


@functools.cache
def say_deprecated(what: str, instead: str, removal: str) -> None:
    """A FutureWarning, the first time.

    Args:
        what: What goes away.
        instead: What to use.
        removal: The first version that no longer has it.
    """
    warnings.warn(_line(what, instead, removal), FutureWarning, stacklevel=3)


def _line(what: str, instead: str, removal: str) -> str:
    return f"{what} goes away in lmd {removal}: use {instead}"
