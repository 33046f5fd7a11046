"""Input-convex networks as potentials, and their gradients as networks of their own: section 3.3 of the paper."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from lmd.core.checks import check_choice, check_count
from lmd.errors import InputError
from lmd.mirrors.base import check_width

LEAK = 0.2  # slope of the activations at negative arguments
SHARPNESS = 10.0  # beta of the smooth activation
INITIAL_OUT = (
    0.02  # the read-out of a convex network at the start, in units of its gain: a few per cent of the gradient
)
ACTIVATIONS = ("leaky", "smooth")


@dataclass(frozen=True)
class Activation:
    """max(t, 0.2 t), or with a sharpness beta the smooth 0.2 t + 0.8 log(1 + exp(beta t)) / beta."""

    beta: float | Tensor | None = None  # None is the leaky ReLU; a tensor broadcasts with t

    def __call__(self, t: Tensor) -> Tensor:
        if self.beta is None:
            return functional.leaky_relu(t, LEAK)
        # Past 40, log(1 + exp u) is u in float64 too. A number for beta saves two passes over t.
        if isinstance(self.beta, Tensor):
            rounded = functional.softplus(self.beta * t, threshold=40) / self.beta
        else:
            rounded = functional.softplus(t, self.beta, threshold=40)
        return torch.add(LEAK * t, rounded, alpha=1 - LEAK)

    def overwriting(self, t: Tensor) -> Tensor:
        """Apply it in place where that is safe: a leaky `pull_back` needs no more than the sign of t."""
        overwrite = self.beta is None and not torch.is_grad_enabled()
        return functional.leaky_relu_(t, LEAK) if overwrite else self(t)

    def pull_back(self, p: Tensor, t: Tensor) -> Tensor:
        """Return p times the derivative at t."""
        if self.beta is None:
            return torch.ops.aten.leaky_relu_backward(p, t, LEAK, False)
        return torch.addcmul(LEAK * p, p, torch.sigmoid(self.beta * t), value=1 - LEAK)


class Lifted(NamedTuple):
    """What a network computes from x before its first layer."""

    x: Tensor
    columns: Tensor  # x as the linear maps of the layers take it
    roots: Sequence[Tensor]  # Wq x of each layer


class PotentialNetwork(nn.Module, abc.ABC):
    r"""Psi(x) = (1 - mu) (net(x) + c/2 ||x||^2) + mu/2 ||x||^2, with net the input-convex network

        z_0 = g(Wl_0 x + (Wq_0 x)^2 + b_0),   z_i = g(Wz_i z_{i-1} + Wl_i x + (Wq_i x)^2 + b_i),   i = 1, ..., layers

    and a read-out w'z. With Wz, w >= 0 it is convex, as g is convex and increasing (Amos, Xu, Kolter 2017). Then Psi
    is strongly convex with the constant mu + (1 - mu) c, which is what `strong_convexity` reports.

    The gradient is a forward pass and a transposed pass from w back to x. With the leaky ReLU the forward pass only
    decides the slopes of the transposed pass: it is never recorded, and the biases are constants drawn at the start.

    Wz and w are stored in units of `gain`, a power of two near one over the number of terms they are summed over, so
    that an entry is about 1 and one learning rate suits all parameters.

    Args:
        shapes: The shapes of the weights.
        terms: How many numbers are summed with each kind of weight.
        mixing: mu in (0, 1), fixed.
        activation: g: "smooth" is 0.2 t + 0.8 log(1 + exp(beta t)) / beta, "leaky" its limit, the leaky ReLU as
            published. With "smooth" every y is the gradient at some x; a leaky potential has kinks, at which its
            gradient jumps, but trains in two thirds of the time.
        curvature: Whether there is a c >= 0. It is learned and starts at 1, so that the gradient of Psi starts near
            the identity; without it (as published) it starts near mu x.
        convex: Whether `constrain_` clips Wz, w and c to be non-negative. Otherwise Psi need not be convex.
        seed: The seed of the initial weights.
    """

    def __init__(
        self,
        shapes: dict[str, tuple[int, ...]],
        terms: dict[str, float],
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
        self.mixing, self.convex = float(mixing), convex
        self.is_smooth = check_choice("activation", activation, ACTIVATIONS) == "smooth"
        self.activation = Activation(SHARPNESS if self.is_smooth else None)
        generator = torch.Generator().manual_seed(check_count("seed", seed, least=0))

        def uniform(name: str, low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(shapes[name], generator=generator)

        width = 1 / math.sqrt(terms["linear"])
        self.linear = nn.Parameter(uniform("linear", -width, width))
        self.quadratic = nn.Parameter(uniform("quadratic", -width, width))
        bias = uniform("bias", -width, width)
        if self.is_smooth:
            self.bias = nn.Parameter(bias)
        else:
            self.register_buffer("bias", bias)
        power = 1.0 if convex else 0.5
        self.gain = 2.0 ** -round(power * math.log2(terms["hidden"]))
        self.gain_out = 2.0 ** -round(power * math.log2(terms["out"]))
        if convex:
            self.hidden = nn.Parameter(uniform("hidden", 0.0, 2.0))
            self.out = nn.Parameter(torch.full(shapes["out"], INITIAL_OUT))
        else:
            # Signed weights that keep the size of z, and a read-out of 0: exactly the quadratic at the start.
            self.hidden = nn.Parameter(uniform("hidden", -math.sqrt(3), math.sqrt(3)))
            self.out = nn.Parameter(torch.zeros(shapes["out"]))
        self.curvature = nn.Parameter(torch.ones(())) if curvature else None

    def value(self, x: Tensor) -> Tensor:
        """Return Psi of each instance: x `(B, ...)` to `(B,)`."""
        lifted = self._lift(x)
        return self._value(lifted, self._forward(lifted, self.activation), self.activation)

    def gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of Psi at x, same shape as x."""
        if torch.is_grad_enabled():
            return self._gradient(x)
        return torch.cat([self._gradient(part) for part in torch.split(x, self._instances_at_once(x))])

    def forward(self, x: Tensor) -> Tensor:
        """Return the gradient."""
        return self.gradient(x)

    def value_and_gradient(self, x: Tensor, beta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return both; with beta `(B,)`, for the smooth activation of that sharpness."""
        activation = self.activation if beta is None else Activation(beta.reshape(-1, *(1,) * (x.ndim - 1)))
        lifted = self._lift(x)
        inputs = self._forward(lifted, activation)
        value = self._value(lifted, inputs, activation)
        return value, self._mix(x, self._transposed(lifted, inputs, activation))

    @property
    def strong_convexity(self) -> Tensor:
        """mu + (1 - mu) c, or 0 where the network need not be convex or a weight is negative."""
        weights = [weight for weight in (self.hidden, self.out, self.curvature) if weight is not None]
        if not self.convex or any(bool((weight < 0).any()) for weight in weights):
            return self.out.new_zeros(())
        return self._quadratic_part().detach()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clip negative weights where the network is to be convex."""
        for weight in (self.hidden, self.out, self.curvature) if self.convex else ():
            if weight is not None:
                weight.clamp_(min=0)

    @abc.abstractmethod
    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if it is a batch of points that this network takes."""

    @abc.abstractmethod
    def _lift(self, x: Tensor) -> Lifted:
        """Return what the layers need of x."""

    @abc.abstractmethod
    def _forward(self, lifted: Lifted, activation: Activation) -> list[Tensor]:
        """Return the argument of g in each layer."""

    @abc.abstractmethod
    def _read_out(self, lifted: Lifted, last: Tensor) -> Tensor:
        """Return net(x) `(B,)` from the last z."""

    @abc.abstractmethod
    def _transposed(self, lifted: Lifted, inputs: list[Tensor], activation: Activation) -> Tensor:
        """Return the gradient of net at x."""

    def _instances_at_once(self, x: Tensor) -> int:
        """Return how many instances to process together without a graph."""
        return x.shape[0]

    def _gradient(self, x: Tensor) -> Tensor:
        lifted = self._lift(x)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.is_smooth):
            inputs = self._forward(lifted, self.activation)
        return self._mix(x, self._transposed(lifted, inputs, self.activation))

    def _value(self, lifted: Lifted, inputs: list[Tensor], activation: Activation) -> Tensor:
        net = self._read_out(lifted, activation(inputs[-1]))
        return (1 - self.mixing) * net + 0.5 * self._quadratic_part() * lifted.x.square().flatten(1).sum(dim=1)

    def _quadratic_part(self) -> Tensor:
        mu = torch.as_tensor(self.mixing, dtype=self.out.dtype, device=self.out.device)
        return mu if self.curvature is None else mu + (1 - mu) * self.curvature

    def _mix(self, x: Tensor, gradient: Tensor) -> Tensor:
        return (1 - self.mixing) * gradient + self._quadratic_part() * x


class DenseICNN(PotentialNetwork):
    """The potential of `PotentialNetwork` on vectors x `(B, d)`, read out as w'z + (wq'x)^2 + wl'x.

    Published: for the SVM (d = 51) 96 wide with 4 `layers` on top of the first, for the classifier (d = 500) 128 wide.
    `options` are the keyword arguments of `PotentialNetwork`.
    """

    def __init__(self, dimension: int, width: int = 64, layers: int = 2, **options: Any) -> None:
        check_count("dimension", dimension)
        every = (check_count("layers", layers) + 1, check_count("width", width))
        shapes = {"linear": (*every, dimension), "quadratic": (*every, dimension), "bias": every}
        shapes |= {"hidden": (layers, width, width), "out": (width,)}
        super().__init__(shapes, {"linear": dimension, "hidden": width, "out": width / dimension}, **options)
        self.dimension, self.width, self.layers = dimension, width, layers
        # The last layer's own terms start at nothing, or for the square, which has no derivative there, next to it.
        self.out_linear = nn.Parameter(torch.zeros(dimension))
        self.out_quadratic = nn.Parameter(torch.full((dimension,), 1e-4))

    def check_shape(self, argument: str, x: Tensor) -> Tensor:
        return check_width(argument, x, self.dimension)

    def _lift(self, x: Tensor) -> Lifted:
        self.check_shape("x", x)
        return Lifted(x, x, self._by_layer(x @ self.quadratic.flatten(0, 1).T))

    def _by_layer(self, rows: Tensor) -> Sequence[Tensor]:
        return rows.reshape(rows.shape[0], -1, self.width).unbind(1)

    def _forward(self, lifted: Lifted, activation: Activation) -> list[Tensor]:
        linear = torch.addmm(self.bias.flatten(), lifted.x, self.linear.flatten(0, 1).T)
        inputs = [torch.addcmul(t, root, root) for t, root in zip(self._by_layer(linear), lifted.roots, strict=True)]
        for i, weight in enumerate((self.gain * self.hidden).unbind(0), start=1):
            inputs[i] = torch.addmm(inputs[i], activation(inputs[i - 1]), weight.T)
        return inputs

    def _read_out(self, lifted: Lifted, last: Tensor) -> Tensor:
        net = last @ (self.gain_out * self.out) + lifted.x @ self.out_linear
        return net + (lifted.x @ self.out_quadratic).square()

    def _transposed(self, lifted: Lifted, inputs: list[Tensor], activation: Activation) -> Tensor:
        weights = (self.gain * self.hidden).unbind(0)
        upstream = (self.gain_out * self.out).expand_as(inputs[-1])
        deltas = [activation.pull_back(upstream, inputs[-1])]
        for weight, t in zip(reversed(weights), reversed(inputs[:-1]), strict=True):
            deltas.insert(0, activation.pull_back(deltas[0] @ weight, t))
        products = torch.cat([root * delta for root, delta in zip(lifted.roots, deltas, strict=True)], dim=1)
        gradient = torch.cat(deltas, dim=1) @ self.linear.flatten(0, 1) + self.out_linear
        gradient = gradient + 2 * products @ self.quadratic.flatten(0, 1)
        return gradient + 2 * torch.outer(lifted.x @ self.out_quadratic, self.out_quadratic)
