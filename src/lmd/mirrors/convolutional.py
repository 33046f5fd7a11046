"""The input-convex network of convolutions as a potential on images (section 5.2 of the paper)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lmd.core.checks import check_choice, check_count, shape_of
from lmd.errors import InputError
from lmd.mirrors.potentials import Activation, Lifted, PotentialNetwork

BORDERS = ("circular", "replicate")
REDUCTIONS = ("sum", "mean")

MAX_CACHED_NUMBERS = 2**20  # numbers of a layer that are processed at once on a CPU


class _Pad(torch.autograd.Function):
    """`pad` in one copy, with `unpad` for its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, radius: int, border: str) -> Tensor:
        ctx.radius, ctx.border = radius, border
        height, width = x.shape[1:3]
        padded = x.new_empty(x.shape[0], height + 2 * radius, width + 2 * radius, x.shape[3])
        padded[:, radius : radius + height, radius : radius + width] = x
        for dim, size in ((1, height), (2, width)):
            first, last = (size, radius) if border == "circular" else (radius, radius + size - 1)
            count = radius if border == "circular" else 1
            padded.narrow(dim, 0, radius).copy_(padded.narrow(dim, first, count))
            padded.narrow(dim, radius + size, radius).copy_(padded.narrow(dim, last, count))
        return padded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return unpad(gradient.clone(), ctx.radius, ctx.border), None, None


def pad(x: Tensor, radius: int, border: str) -> Tensor:
    """Add `radius` pixels on every side of x `(B, H, W, C)`: from the other side, or the nearest pixel again."""
    return _Pad.apply(x, radius, border) if radius else x  # type: ignore[no-untyped-call]


def unpad(x: Tensor, radius: int, border: str) -> Tensor:
    """Apply the adjoint of `pad`: add each pixel of the border to the one it was copied from. Overwrites x."""
    for dim in (2, 1) if radius else ():
        size = x.shape[dim] - 2 * radius
        before, after = x.narrow(dim, 0, radius), x.narrow(dim, radius + size, radius)
        if border == "circular":
            x.narrow(dim, size, radius).add_(before)
            x.narrow(dim, radius, radius).add_(after)
        else:
            x.narrow(dim, radius, 1).add_(before.sum(dim=dim, keepdim=True))
            x.narrow(dim, radius + size - 1, 1).add_(after.sum(dim=dim, keepdim=True))
        x = x.narrow(dim, radius, size)
    return x


def instances_in_cache(x: Tensor, filters: int) -> int:
    """Return how many of the images x to process at once without a graph: on a CPU, as many as fit into its cache."""
    if x.device.type != "cpu":
        return x.shape[0]
    return max(1, MAX_CACHED_NUMBERS // (filters * x.shape[2] * x.shape[3]))


class ConvICNN(PotentialNetwork):
    r"""The potential of `PotentialNetwork` on images x `(B, C, H, W)` of any size, its linear maps convolutions.

    The read-out is w'z summed over the pixels, so that a pixel of the gradient depends on its surroundings alone, and
    a network trained on small images means the same on large ones. `reduction="mean"` divides by H W, as the published
    networks do. (They end in another convolution before the mean: with circular borders that is a read-out with the
    sums of its kernels.)

    Wl x and Wq x are matrix products with the k x k patches of x, which are cut once for all layers; the Wz are
    convolutions, transposed on the way back. Published: 60 `filters` and 3 `layers` on top of the first. `kernel` is
    odd, and `border` says how images continue: "circular" or "replicate". `options` are the keyword arguments of
    `PotentialNetwork`.
    """

    def __init__(
        self,
        channels: int = 3,
        filters: int = 32,
        layers: int = 2,
        kernel: int = 3,
        *,
        border: str = "circular",
        reduction: str = "sum",
        **options: Any,
    ) -> None:
        check_count("channels", channels)
        taps = check_kernel(kernel) ** 2
        every = (check_count("layers", layers) + 1, check_count("filters", filters))
        patches = (*every, channels, kernel, kernel)
        shapes: dict[str, tuple[int, ...]] = {"linear": patches, "quadratic": patches, "bias": every}
        shapes |= {"hidden": (layers, filters, filters, kernel, kernel), "out": (filters,)}
        terms = {"linear": channels * taps, "hidden": filters * taps, "out": filters / channels}
        super().__init__(shapes, terms, **options)
        self.channels, self.filters, self.layers, self.kernel = channels, filters, layers, kernel
        self.border = check_choice("border", border, BORDERS)
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)
        self.radius = kernel // 2  # how far a kernel reaches from its centre, in pixels

    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.channels or min(x.shape[2:]) < max(self.radius, 1):
            accepted = f"images (B, {self.channels}, H, W) of at least {max(self.radius, 1)} pixels each way"
            raise InputError(argument, f"shape {shape_of(x)}", accepted)
        return x

    def _instances_at_once(self, x: Tensor) -> int:
        return instances_in_cache(x, self.filters)

    def _read_out_weights(self, x: Tensor) -> Tensor:
        scale = self.gain_out / (x.shape[2] * x.shape[3]) if self.reduction == "mean" else self.gain_out
        return scale * self.out

    def _lift(self, x: Tensor) -> Lifted:
        padded = pad(self.check_shape("x", x).permute(0, 2, 3, 1), self.radius, self.border)
        patches = padded.unfold(1, self.kernel, 1).unfold(2, self.kernel, 1).flatten(3).flatten(0, 2)
        kernels = self.quadratic.flatten(2).unbind(0)
        return Lifted(x, patches, [_as_images(patches @ kernel.T, x) for kernel in kernels])

    def _forward(self, lifted: Lifted, activation: Activation) -> list[Tensor]:
        inputs: list[Tensor] = []
        weights = (self.gain * self.hidden).unbind(0)
        for i, kernel in enumerate(self.linear.flatten(2).unbind(0)):
            if i == 0:
                t = _as_images(torch.addmm(self.bias[0], lifted.columns, kernel.T), lifted.x)
            else:
                z = pad(activation.overwriting(inputs[-1]), self.radius, self.border)
                t = functional.conv2d(z.permute(0, 3, 1, 2), weights[i - 1], self.bias[i]).permute(0, 2, 3, 1)
                # In place, and so with the dtype of t, which automatic mixed precision chooses.
                t.flatten(0, 2).addmm_(lifted.columns.to(t.dtype), kernel.T.to(t.dtype))
            inputs.append(t.addcmul_(lifted.roots[i], lifted.roots[i]))
        return inputs

    def _read_out(self, lifted: Lifted, last: Tensor) -> Tensor:
        return last.sum(dim=(1, 2)) @ self._read_out_weights(lifted.x)

    def _transposed(self, lifted: Lifted, inputs: list[Tensor], activation: Activation) -> Tensor:
        weights = (self.gain * self.hidden).unbind(0)
        linear, quadratic = self.linear.flatten(2).unbind(0), (2 * self.quadratic).flatten(2).unbind(0)
        upstream = self._read_out_weights(lifted.x).expand_as(inputs[-1])
        columns = lifted.columns.new_zeros(())
        for i in reversed(range(self.layers + 1)):
            delta = activation.pull_back(upstream, inputs[i])
            columns = columns + linear[i].T @ delta.flatten(0, 2).T
            columns = columns + quadratic[i].T @ (lifted.roots[i] * delta).flatten(0, 2).T
            if i > 0:
                wide = functional.conv_transpose2d(delta.permute(0, 3, 1, 2), weights[i - 1]).permute(0, 2, 3, 1)
                upstream = unpad(wide, self.radius, self.border)
        return self._fold(columns, lifted.x)

    def _fold(self, columns: Tensor, x: Tensor) -> Tensor:
        """Apply the adjoint of cutting x into patches: columns `(C k k, B H W)` to `(B, C, H, W)`."""
        height, width = (n + 2 * self.radius for n in x.shape[2:])
        patches = columns.reshape(columns.shape[0], x.shape[0], -1).transpose(0, 1)
        padded = functional.fold(patches, (height, width), self.kernel)
        return unpad(padded.permute(0, 2, 3, 1), self.radius, self.border).permute(0, 3, 1, 2)


def check_kernel(kernel: int) -> int:
    """Return `kernel` if it is an odd number of pixels."""
    if check_count("kernel", kernel) % 2 == 0:
        raise InputError("kernel", kernel, "an odd number")
    return kernel


def _as_images(rows: Tensor, x: Tensor) -> Tensor:
    """Return rows of one pixel each as `(B, H, W, channels)`."""
    return rows.reshape(x.shape[0], *x.shape[2:], -1)
