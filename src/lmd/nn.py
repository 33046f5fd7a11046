"""Layers of PyTorch's that solve a problem: total variation denoising with a weight that is learned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lmd.checks import check_finite, check_positive
from lmd.errors import InputError
from lmd.problems.derivatives import check_transforms
from lmd.problems.models import TVModel
from lmd.terms import Squares
from lmd.zoo.solve import solve


class TVLayer(nn.Module):
    r"""x = argmin_x ||x - y||^2 + weight TV(x), with derivatives by y and by the weight; y `(B, C, *size)`.

    Args:
        weight: What it begins with, positive: a number, or a map `(1 or C, *size)`, one weight per pixel. Learned as
            its logarithm.
        isotropic: Lengths of gradients in place of sums of absolute differences.
        tolerance: How near to the minimum each answer is proven to be, relative to it. A derivative is that of the
            flat regions that the answer shows: see `lmd.problems.derivatives`.

    `layer(y, weight)` takes another weight, such as one that a network computes from y: a number, one per image `(B,)`
    or a map `(B, 1 or C, *size)`. In the anisotropic form backward costs a fraction of forward; in the isotropic one it
    solves a linear system.

    >>> layer = TVLayer(0.2)
    >>> y = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    >>> layer(y).square().sum().backward()
    >>> y.grad.shape, bool(layer.log_weight.grad < 0)
    (torch.Size([2, 1, 8, 8]), True)
    """

    def __init__(self, weight: float | Tensor = 0.1, *, isotropic: bool = False, tolerance: float = 1e-4) -> None:
        super().__init__()
        begin = (
            weight.detach().clone() if isinstance(weight, Tensor) else torch.tensor(check_positive("weight", weight))
        )
        if not bool((check_finite("weight", begin) > 0).all()):
            raise InputError("weight", f"{float(begin.min()):g}", "positive numbers")
        self.log_weight = nn.Parameter(begin.log())
        self.isotropic, self.tolerance = isotropic, check_positive("tolerance", tolerance)

    @property
    def weight(self) -> Tensor:
        """The weight as it is now: `()` or a map `(1 or C, *size)`."""
        return self.log_weight.exp()

    def forward(self, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """x, of the shape of y."""
        check_transforms()
        if weight is None:
            weight = self.weight
            weight = weight if weight.ndim == 0 else weight.expand(len(y), *weight.shape)
        problem = TVModel(Squares(y), weight, isotropic=self.isotropic)
        recording = torch.is_grad_enabled() and (y.requires_grad or weight.requires_grad)
        return solve(problem, self.tolerance, differentiable=recording).x

    def extra_repr(self) -> str:
        shape = tuple(self.log_weight.shape)
        return f"weight={f'{float(self.weight.detach()):.3g}' if shape == () else shape}, isotropic={self.isotropic}"
