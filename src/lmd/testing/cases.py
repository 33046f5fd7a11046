"""Decorators that run a test for several values of an argument and count as one test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch

Test = Callable[..., None]


def each(argument: str, values: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test once for each value of an argument; a failure names the value.

    Unlike `pytest.mark.parametrize` this makes one test of all values, which is faster where a value takes a
    millisecond. A call with positional arguments runs the test with these alone.

    Args:
        argument: The name of the argument of the test.
        values: What it takes.
    """
    cases = tuple(values)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(self: Any, *given: Any, **named: Any) -> None:
            if given:
                return test(self, *given, **named)
            for value in cases:
                try:
                    test(self, **named, **{argument: value})
                except AssertionError as error:
                    raise AssertionError(f"{argument} = {value}: {error}") from error

        own = inspect.signature(test)
        kept = [parameter for name, parameter in own.parameters.items() if name != argument]
        run.__signature__ = own.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate


each_dtype = each("dtype", (torch.float32, torch.float64))
each_batch = each("batch", (1, 7))
