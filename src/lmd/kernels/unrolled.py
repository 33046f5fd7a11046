"""Fast gradient projection with given numbers, compiled, with derivatives by the numbers: what training unrolls."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lmd import kernels
from lmd.kernels.loop import Model


def serves(model: Model, numbers: Tensor) -> bool:
    """Whether the compiled iterations can stand in: float32 on the CPU, uncoupled, derivatives by the numbers."""
    constants = (model.noisy, *((model.bound,) if isinstance(model.bound, Tensor) else ()))
    if model.coupled or any(tensor.requires_grad for tensor in constants) or numbers.dtype != torch.float32:
        return False
    return numbers.requires_grad and torch.is_grad_enabled() and kernels.serves(*constants)


def unroll(model: Model, start: Tensor, numbers: Tensor) -> Tensor:
    """p_N `(B, C, 2, H, W)` from p_0 = start, for step-sizes (not multiples) and momenta `(2, B, N)`."""
    return cast(Tensor, _Unrolled.apply(model, start, numbers.transpose(0, 1)))  # type: ignore[no-untyped-call]


class _Unrolled(torch.autograd.Function):
    """The compiled iterations; all p_k are kept for the way back."""

    @staticmethod
    def forward(ctx: Any, model: Model, start: Tensor, numbers: Tensor) -> Tensor:
        y, bound, steps = model.noisy, kernels.per_image(model.bound, model.noisy), numbers.shape[2]
        batch, channels, height, width = y.shape
        inputs: kernels.Inputs = {
            "y": (y, y.shape),
            "start": (start, (batch, channels, 2, height, width)),
            "bound": (bound, (batch,)),
            "numbers": (numbers, numbers.shape),
        }
        ctx.sizes = (batch, channels, height, width, steps, int(model.isotropic))
        ctx.inverse, shape = 0.5 / model.scale, (batch, channels, steps + 1, 2, height, width)
        (points,) = kernels.call("lmd_unroll", inputs, ctx.inverse, ctx.sizes, (shape,))
        ctx.save_for_backward(y, bound, numbers, points)
        return points[:, :, -1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        y, bound, numbers, points = ctx.saved_tensors
        inputs: kernels.Inputs = {
            "y": (y, y.shape),
            "bound": (bound, bound.shape),
            "numbers": (numbers, numbers.shape),
            "points": (points, points.shape),
            "gradient": (gradient, gradient.shape),
        }
        shape = (*y.shape[:2], *numbers.shape[1:])
        (found,) = kernels.call("lmd_unroll_backward", inputs, ctx.inverse, ctx.sizes, (shape,), kind=torch.float64)
        return None, None, found.sum(dim=1).to(numbers.dtype)
