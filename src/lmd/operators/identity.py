"""The operator that changes nothing."""

from __future__ import annotations

from torch import Tensor

from lmd.operators.base import LinearOperator


class Identity(LinearOperator):
    """Kx = x, for x of any shape `(B, ...)`."""

    norm, roundings = 1.0, 0.0
    is_identity = True

    def _apply(self, x: Tensor) -> Tensor:
        return x.clone()

    def _adjoint(self, z: Tensor) -> Tensor:
        return z.clone()
