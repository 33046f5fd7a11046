"""PyTorch layers that solve a problem: total variation denoising with a learned weight."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_positive, check_scale
from lmd.problems.derivatives import check_transforms
from lmd.problems.tv import TVModel
from lmd.terms import Squares
from lmd.zoo.solve import solve


class TVLayer(nn.Module):
    r"""A layer that returns argmin_x ||x - y||^2 + weight TV(x), differentiable in y `(B, C, *size)` and the weight.

    `layer(y, weight)` uses another weight, for example the output of a network: a number, one number per image `(B,)`,
    or a map `(B, 1 or C, *size)`. In the anisotropic form, the backward pass costs a fraction of the forward pass; in
    the isotropic form, it solves a linear system.

    Args:
        weight: The initial weight, positive: a number, or a map `(1 or C, *size)` with one weight per pixel. The layer
            learns its logarithm.
        isotropic: Sum the lengths of gradients instead of absolute differences.
        tolerance: The relative gap that is proven for each answer. The derivatives are computed with the constant
            regions of the answer held fixed: see `lmd.problems.derivatives`.

    >>> layer = TVLayer(0.2)
    >>> y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    >>> layer(y).square().sum().backward()
    >>> y.grad.shape, bool(layer.log_weight.grad < 0)
    (torch.Size([2, 1, 8, 8]), True)
    """

    def __init__(self, weight: float | Tensor = 0.1, *, isotropic: bool = False, tolerance: float = 1e-4) -> None:
        super().__init__()
        self.log_weight = nn.Parameter(torch.as_tensor(check_scale("weight", weight)).detach().log())
        self.isotropic, self.tolerance = isotropic, check_positive("tolerance", tolerance)

    @property
    def weight(self) -> Tensor:
        """The current weight: `()` or a map `(1 or C, *size)`."""
        return self.log_weight.exp()

    def forward(self, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return x in the shape of y. `torch.compile` and `torch.export` trace it as one differentiable operator."""
        if weight is None:
            weight = self.weight
            weight = weight if weight.ndim == 0 else weight.expand(len(y), *weight.shape)
        if torch.compiler.is_compiling():
            traced: Tensor = minimiser(y, weight, self.isotropic, self.tolerance)
            return traced
        check_transforms()
        return _solved(y, weight, self.isotropic, self.tolerance)

    def extra_repr(self) -> str:
        shape = tuple(self.log_weight.shape)
        return f"weight={f'{float(self.weight.detach()):.3g}' if shape == () else shape}, isotropic={self.isotropic}"


def _solved(y: Tensor, weight: Tensor, isotropic: bool, tolerance: float) -> Tensor:
    recording = torch.is_grad_enabled() and (y.requires_grad or weight.requires_grad)
    return solve(TVModel(Squares(y), weight, isotropic=isotropic), tolerance, differentiable=recording).x


@torch.library.custom_op("lmd::minimiser", mutates_args=())
def minimiser(y: Tensor, weight: Tensor, isotropic: bool, tolerance: float) -> Tensor:
    """Compute `TVLayer` as an operator that `torch.compile` and `torch.export` can trace."""
    return _solved(y.detach(), weight.detach(), isotropic, tolerance).clone()


@torch.library.custom_op("lmd::minimiser_backward", mutates_args=())
def minimiser_backward(
    gradient: Tensor, y: Tensor, weight: Tensor, isotropic: bool, tolerance: float
) -> tuple[Tensor, Tensor]:
    """Solve again; return the gradients with respect to y and the weight, given that with respect to the answer.

    The solve runs in another thread, because autograd records nothing inside an operator.
    """
    leaves = y.detach().clone().requires_grad_(), weight.detach().clone().requires_grad_()
    with ThreadPoolExecutor(1) as thread:
        task = thread.submit(lambda: torch.autograd.grad(_solved(*leaves, isotropic, tolerance), leaves, gradient))
        by_y, by_weight = task.result()
    return by_y.clone(), by_weight.clone()


@minimiser.register_fake
def _(y: Tensor, weight: Tensor, isotropic: bool, tolerance: float) -> Tensor:
    return torch.empty_like(y)


@minimiser_backward.register_fake
def _(gradient: Tensor, y: Tensor, weight: Tensor, isotropic: bool, tolerance: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(y), torch.empty_like(weight)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.options = inputs[2:]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    return (*minimiser_backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.options), None, None)


minimiser.register_autograd(_backward, setup_context=_save)
