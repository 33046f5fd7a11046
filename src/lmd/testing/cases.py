"""What the conformance suites share: several cases as one test, comparisons, derivatives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

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


def at_most(small: Tensor | float, large: Tensor | float, what: str) -> None:
    """Assert that no entry of `small` is above that of `large`."""
    assert bool(torch.as_tensor(small <= large).all()), f"{what}: {small} should be at most {large}"


def check_derivative(curve: Callable[[Tensor], Tensor], name: str = "") -> Tensor:
    """Return the derivative of a curve at 0 by autograd, checked by a central difference of a mix of its entries."""
    zero, width = torch.zeros((), dtype=torch.float64, requires_grad=True), 1e-6
    answer = curve(zero)
    mixture = torch.randn(answer.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        difference = (mixture * (curve(zero + width) - curve(zero - width))).sum() / (2 * width)
    slope = torch.zeros_like(difference)
    if answer.requires_grad:
        (slope,) = torch.autograd.grad((mixture * answer).sum(), zero)
    assert_close(slope, difference, rtol=1e-4, atol=1e-6, msg=lambda message: f"{name}: {message}")
    return slope


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype inside a `with` block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
