"""PyTorch layers that solve a problem: total variation denoising with a learned weight."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_finite, check_positive
from lmd.errors import InputError
from lmd.problems.derivatives import check_transforms
from lmd.problems.models import TVModel
from lmd.terms import Squares
from lmd.zoo.solve import solve


class TVLayer(nn.Module):
    r"""x = argmin_x ||x - y||^2 + weight TV(x), with derivatives with respect to y and the weight; y `(B, C, *size)`.

    `layer(y, weight)` uses another weight, such as one that a network computes from y: a number, one per image `(B,)`
    or a map `(B, 1 or C, *size)`. In the anisotropic form, backward costs a fraction of forward; in the isotropic form
    it solves a linear system.

    Args:
        weight: The initial weight, positive: a number, or a map `(1 or C, *size)` with one weight per pixel. The layer
            learns its logarithm.
        isotropic: Sum the lengths of gradients instead of absolute differences.
        tolerance: The relative gap that is proven for each answer. Derivatives are those of the constant regions of
            the answer: see `lmd.problems.derivatives`.

    >>> layer = TVLayer(0.2)
    >>> y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    >>> layer(y).square().sum().backward()
    >>> y.grad.shape, bool(layer.log_weight.grad < 0)
    (torch.Size([2, 1, 8, 8]), True)
    """

    def __init__(self, weight: float | Tensor = 0.1, *, isotropic: bool = False, tolerance: float = 1e-4) -> None:
        super().__init__()
        start = weight.detach() if isinstance(weight, Tensor) else torch.tensor(check_positive("weight", weight))
        if not bool((check_finite("weight", start) > 0).all()):
            raise InputError("weight", f"{float(start.min()):g}", "positive numbers")
        self.log_weight = nn.Parameter(start.log())
        self.isotropic, self.tolerance = isotropic, check_positive("tolerance", tolerance)

    @property
    def weight(self) -> Tensor:
        """The current weight: `()` or a map `(1 or C, *size)`."""
        return self.log_weight.exp()

    def forward(self, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return x, of the shape of y. `torch.compile` and `torch.export` see one operator with a derivative."""
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
    """Return `gradient` times the derivatives by y and by the weight, for which the problem is solved again.

    This runs in another thread, because autograd records nothing inside an operator.
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
