"""Input-convex networks of vectors or images as potentials, and their gradients: section 3.3 of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_choice, check_count, shape_of
from lmd.errors import InputError
from lmd.mirrors.base import check_width

LEAK = 0.2  # slope of the activations at negative arguments
SHARPNESS = 10.0  # beta of the smooth activation
INITIAL_OUT = 0.02  # initial `out` of a convex network, whose share of the gradient is then a few per cent
BORDERS = ("circular", "replicate")
MAX_CACHED_NUMBERS = 2**20  # numbers of a layer that are processed at once on a CPU


class Matrices:
    """Linear maps of vectors `(B, points)`, with weights `(width, points)`."""

    kernel: tuple[int, ...] = ()
    is_mean = False  # whether sums over the pixels are divided by their number

    def __init__(self, points: int) -> None:
        self.points = check_count("dimension", points)

    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if it is a batch of points."""
        return check_width(argument, x, self.points)

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return Wx + b."""
        return functional.linear(x, weight, bias)

    def adjoint(self, p: Tensor, weight: Tensor) -> Tensor:
        """Return W'p."""
        return p @ weight


class Convolutions(Matrices):
    """Linear maps of images `(B, points, H, W)` to images of the same size, with weights `(width, points, k, k)`.

    Args:
        points: Channels.
        kernel: k, the side of a kernel in pixels, odd.
        border: How images continue past their borders: "circular" or "replicate".
        reduction: Whether the read-out of an image is the "sum" or the "mean" over its pixels.
    """

    def __init__(self, points: int, kernel: int = 3, border: str = "circular", reduction: str = "sum") -> None:
        self.points, self.border = check_count("channels", points), check_choice("border", border, BORDERS)
        self.is_mean = check_choice("reduction", reduction, ("sum", "mean")) == "mean"
        if check_count("kernel", kernel) % 2 == 0:
            raise InputError("kernel", kernel, "an odd number")
        self.kernel, self.radius = (kernel, kernel), kernel // 2

    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        least = max(self.radius, 1)
        if x.ndim != 4 or x.shape[1] != self.points or min(x.shape[2:]) < least:
            accepted = f"images (B, {self.points}, H, W) of at least {least} pixels each way"
            raise InputError(argument, f"shape {shape_of(x)}", accepted)
        return x

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        padded = functional.pad(x, (self.radius,) * 4, mode=self.border) if self.radius else x
        return functional.conv2d(padded, weight, bias)

    def adjoint(self, p: Tensor, weight: Tensor) -> Tensor:
        x = functional.conv_transpose2d(p, weight)
        radius = self.radius
        for dim in (2, 3) if radius else ():  # add each pixel of the border to the one it was copied from
            size = x.shape[dim] - 2 * radius
            before, after = x.narrow(dim, 0, radius), x.narrow(dim, radius + size, radius)
            if self.border == "circular":
                x.narrow(dim, size, radius).add_(before)
                x.narrow(dim, radius, radius).add_(after)
            else:
                x.narrow(dim, radius, 1).add_(before.sum(dim=dim, keepdim=True))
                x.narrow(dim, radius + size - 1, 1).add_(after.sum(dim=dim, keepdim=True))
            x = x.narrow(dim, radius, size)
        return x


def in_parts(function: Callable[[Tensor], Tensor], x: Tensor, width: int) -> Tensor:
    """Return function(x); on a CPU without a graph, process as many instances at once as fit into the cache."""
    if torch.is_grad_enabled() or x.device.type != "cpu":
        return function(x)
    count = max(1, MAX_CACHED_NUMBERS // (width * x.shape[2:].numel()))
    return torch.cat([function(part) for part in torch.split(x, count)])


@dataclass(frozen=True)
class Activation:
    """max(t, 0.2 t), or with a sharpness beta the smooth 0.2 t + 0.8 log(1 + exp(beta t)) / beta."""

    beta: float | None = None  # None is the leaky ReLU

    def __call__(self, t: Tensor) -> Tensor:
        if self.beta is None:
            return functional.leaky_relu(t, LEAK)
        rounded = functional.softplus(t, self.beta, threshold=40)  # log(1 + exp 40) is 40 in float64 too
        return torch.add(LEAK * t, rounded, alpha=1 - LEAK)

    def pull_back(self, p: Tensor, t: Tensor) -> Tensor:
        """Return p times the derivative at t."""
        if self.beta is None:
            return torch.ops.aten.leaky_relu_backward(p, t, LEAK, False)
        return torch.addcmul(LEAK * p, p, torch.sigmoid(self.beta * t), value=1 - LEAK)


class PotentialNetwork(nn.Module):
    r"""Psi(x) = (1 - mu) (net(x) + c/2 ||x||^2) + mu/2 ||x||^2, with net the input-convex network

        z_0 = g(Wl_0 x + (Wq_0 x)^2 + b_0),   z_i = g(Wz_i z_{i-1} + Wl_i x + (Wq_i x)^2 + b_i),   i = 1, ..., layers

    and a read-out. For vectors it is w'z + (wq'x)^2 + wl'x. For images it is the sum of w'z over the pixels or, as
    published, the mean. With the sum, the gradient at a pixel depends only on its surroundings, for images of any size.
    If Wz, w >= 0, net is convex, as g is convex and increasing (Amos, Xu, Kolter 2017). Then Psi is strongly
    convex with the constant mu + (1 - mu) c, which `strong_convexity` returns.

    The published networks have 60 filters and 3 layers for images, and end in another convolution before the mean (with
    circular borders, this is a read-out with the sums of its kernels); width 96 and 4 layers for the SVM (d = 51); and
    width 128 for the classifier (d = 500).

    The gradient is a forward pass and a transposed pass from w back to x. With the leaky ReLU, the forward pass only
    determines the slopes of the transposed pass: it is never recorded, and the biases are random constants.

    Wz and w are stored in units of `gain` and `gain_out`, powers of two near 1 / (the number of summed terms), so that
    entries are of order 1 and one learning rate suits all parameters.

    Args:
        maps: The linear maps: `Matrices` or `Convolutions`.
        width: The number of units or filters of a layer.
        layers: The number of layers on top of the first.
        mixing: mu, a fixed number in (0, 1).
        activation: g: "smooth" is 0.2 t + 0.8 log(1 + exp(beta t)) / beta, "leaky" its limit, the leaky ReLU as
            published. With "smooth" every y is the gradient at some x; a leaky potential has kinks, at which its
            gradient jumps, but trains in two thirds of the time.
        curvature: Whether Psi has the term with a learned c >= 0. c starts at 1, so that the gradient of Psi starts
            near the identity; without the term (as published), the gradient starts near mu x.
        convex: Whether `constrain_` clips Wz, w and c to be non-negative. Otherwise Psi need not be convex.
        seed: The seed of the initial weights.
    """

    def __init__(
        self,
        maps: Matrices,
        width: int,
        layers: int,
        *,
        mixing: float = 0.1,
        activation: str = "smooth",
        curvature: bool = True,
        convex: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(mixing, (int, float)) or not 0 < mixing < 1:
            raise InputError("mixing", mixing, "a number in (0, 1)")
        self.maps, self.width, self.layers = maps, check_count("width", width), check_count("layers", layers)
        self.mixing, self.convex = float(mixing), convex
        self.is_smooth = check_choice("activation", activation, ("leaky", "smooth")) == "smooth"
        self.activation = Activation(SHARPNESS if self.is_smooth else None)
        generator = torch.Generator().manual_seed(check_count("seed", seed, least=0))
        taps = math.prod(maps.kernel)
        edge = 1 / math.sqrt(maps.points * taps)

        def uniform(*shape: int, low: float = -edge, high: float = edge) -> Tensor:
            return low + (high - low) * torch.rand(shape, generator=generator)

        self.linear = nn.Parameter(uniform(layers + 1, width, maps.points, *maps.kernel))
        self.quadratic = nn.Parameter(uniform(layers + 1, width, maps.points, *maps.kernel))
        bias = uniform(layers + 1, width)
        if self.is_smooth:
            self.bias = nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias)
        power = 1.0 if convex else 0.5
        self.gain = 2.0 ** -round(power * math.log2(width * taps))
        self.gain_out = 2.0 ** -round(power * math.log2(width / maps.points))
        # Without convexity, weights are signed and keep the size of z, and a read-out of 0 makes Psi quadratic.
        low, high = (0.0, 2.0) if convex else (-math.sqrt(3), math.sqrt(3))
        self.hidden = nn.Parameter(uniform(layers, width, width, *maps.kernel, low=low, high=high))
        self.out = nn.Parameter(torch.full((width,), INITIAL_OUT if convex else 0.0))
        self.curvature = nn.Parameter(torch.ones(())) if curvature else None
        self.is_dense = not maps.kernel
        if self.is_dense:  # wl starts at 0, wq near 0, where the derivative of its square is not 0
            self.out_linear = nn.Parameter(torch.zeros(maps.points))
            self.out_quadratic = nn.Parameter(torch.full((maps.points,), 1e-4))

    def value(self, x: Tensor) -> Tensor:
        """Return Psi of each instance: x `(B, ...)` to `(B,)`."""
        return self._value(x, self._pass(x, self.activation)[1][-1], self.activation)

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of Psi at x, same shape as x."""
        return in_parts(self._gradient, x, self.width)

    forward = gradient

    def value_and_gradient(self, x: Tensor, beta: float | None = None) -> tuple[Tensor, Tensor]:
        """Return Psi and its gradient; if given, beta replaces the sharpness of the activation."""
        activation = self.activation if beta is None else Activation(beta)
        roots, inputs = self._pass(x, activation)
        return self._value(x, inputs[-1], activation), self._mix(x, self._pass_back(x, roots, inputs, activation))

    @property
    def strong_convexity(self) -> Tensor:
        """mu + (1 - mu) c, or 0 if the network need not be convex or a weight is negative."""
        if not self.convex or any(bool((weight < 0).any()) for weight in self._non_negative()):
            return self.out.new_zeros(())
        return self._quadratic_part().detach()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clip negative weights to 0 if the network has to be convex."""
        for weight in self._non_negative() if self.convex else ():
            weight.clamp_(min=0)

    def _non_negative(self) -> list[Tensor]:
        return [weight for weight in (self.hidden, self.out, self.curvature) if weight is not None]

    def _read_out(self, x: Tensor) -> Tensor:
        """Return the weights w of z."""
        weights = self.gain_out * self.out
        return weights / x.shape[2:].numel() if self.maps.is_mean else weights

    def _pass(self, x: Tensor, activation: Activation, is_recorded: bool = True) -> tuple[Tensor, list[Tensor]]:
        """Return Wq x of all layers side by side, and the argument of g in each layer."""
        roots = self.maps.apply(self.maps.check_shape("x", x), self.quadratic.flatten(0, 1))
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_recorded):
            linear = self.maps.apply(x, self.linear.flatten(0, 1), self.bias.flatten())
            inputs = list(torch.addcmul(linear, roots, roots).chunk(self.layers + 1, dim=1))
            for i, weight in enumerate(self.gain * self.hidden, start=1):
                inputs[i] = inputs[i] + self.maps.apply(activation(inputs[i - 1]), weight)
        return roots, inputs

    def _pass_back(self, x: Tensor, roots: Tensor, inputs: list[Tensor], activation: Activation) -> Tensor:
        """Return the gradient of net at x."""
        weights = (self.gain * self.hidden).unbind(0)
        upstream = self._read_out(x).reshape(-1, *(1,) * (x.ndim - 2)).expand_as(inputs[-1])
        deltas = [activation.pull_back(upstream, inputs[-1])]
        for weight, t in zip(reversed(weights), reversed(inputs[:-1]), strict=True):
            deltas.insert(0, activation.pull_back(self.maps.adjoint(deltas[0], weight), t))
        delta = torch.cat(deltas, dim=1)
        gradient = self.maps.adjoint(delta, self.linear.flatten(0, 1))
        gradient = gradient + self.maps.adjoint(roots * delta, 2 * self.quadratic.flatten(0, 1))
        if self.is_dense:
            slope = torch.outer(x @ self.out_quadratic, self.out_quadratic)
            gradient = gradient + self.out_linear + 2 * slope
        return gradient

    def _gradient(self, x: Tensor) -> Tensor:
        return self._mix(x, self._pass_back(x, *self._pass(x, self.activation, self.is_smooth), self.activation))

    def _value(self, x: Tensor, last: Tensor, activation: Activation) -> Tensor:
        z = activation(last)
        net = z.reshape(*z.shape[:2], -1).sum(dim=2) @ self._read_out(x)
        if self.is_dense:
            net = net + x @ self.out_linear + (x @ self.out_quadratic).square()
        return (1 - self.mixing) * net + 0.5 * self._quadratic_part() * x.square().flatten(1).sum(dim=1)

    def _quadratic_part(self) -> Tensor:
        mu = torch.as_tensor(self.mixing, dtype=self.out.dtype, device=self.out.device)
        return mu if self.curvature is None else mu + (1 - mu) * self.curvature

    def _mix(self, x: Tensor, gradient: Tensor) -> Tensor:
        return (1 - self.mixing) * gradient + self._quadratic_part() * x
