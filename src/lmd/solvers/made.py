"""What is made of tensors once, and again when these have changed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_VERSION = operator.attrgetter("_version")


def version(x: Tensor) -> float:
    """How often a tensor was changed; NaN, which equals nothing, of one from inference mode, which does not count."""
    return math.nan if x.is_inference() else x._version


@dataclass(frozen=True)
class Last(Generic[T]):
    """What was made last, and of what."""

    versions: list[int]
    tensors: Sequence[Tensor]
    made: T


class Made(Generic[T]):
    """What was made of tensors, kept while they are the very same and unchanged. Copies begin with nothing."""

    def __init__(self) -> None:
        self.last: Last[T] | None = None

    def of(self, tensors: Sequence[Tensor], make: Callable[[], T]) -> T:
        """What was made of these, or what `make` makes of them now: without derivatives, for any mode to come."""
        try:
            versions = list(map(_VERSION, tensors))
        except RuntimeError:  # tensors from inference mode do not count their changes
            return make()
        last = self.last
        if last is None or last.versions != versions or not all(map(operator.is_, last.tensors, tensors)):
            with torch.inference_mode(False), torch.no_grad():
                self.last = last = Last(versions, tensors, make())
        return last.made

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()
