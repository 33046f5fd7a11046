"""What is made of tensors once, and again when these have changed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_VERSION = operator.attrgetter("_version")


def version(x: Tensor) -> float:
    """How often a tensor was changed; NaN, which equals nothing, of one from inference mode, which does not count."""
    return math.nan if x.is_inference() else x._version


class TensorCache(Generic[T]):
    """What was made of tensors, kept while they are the very same and unchanged. Copies begin with nothing."""

    def __init__(self) -> None:
        self._last: tuple[list[int], Sequence[Tensor], T] | None = None

    def of(self, tensors: Sequence[Tensor], make: Callable[[], T]) -> T:
        """What was made of these, or what `make` makes of them now: without derivatives, for any mode to come."""
        try:
            versions = list(map(_VERSION, tensors))
        except RuntimeError:  # tensors from inference mode do not count their changes
            return make()
        last = self._last
        if last is None or last[0] != versions or not all(map(operator.is_, last[1], tensors)):
            with torch.inference_mode(False), torch.no_grad():
                self._last = last = versions, tensors, make()
        return last[2]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()
