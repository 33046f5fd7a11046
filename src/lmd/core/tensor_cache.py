"""A value computed from tensors, cached until the tensors change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class TensorCache(Generic[T]):
    """One value computed from tensors, cached until their numbers change; copies and pickles start empty."""

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []
        self._value: T | None = None

    def get(self, tensors: Sequence[Tensor], compute: Callable[[], T]) -> T:
        """Return the cached value, or that of `compute()`, which is called without autograd if `tensors` changed."""
        if self._value is None or not _are_equal(tensors, self._tensors):
            with torch.inference_mode(False), torch.no_grad():
                self._value = compute()
                self._tensors = [each.detach().clone() for each in tensors]
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()


def _are_equal(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    pairs = zip(tensors, others, strict=False)
    return len(tensors) == len(others) and all(
        one.dtype == other.dtype and one.device == other.device and torch.equal(one, other) for one, other in pairs
    )
