"""Terms: convex functions of one array per instance, with prox, conjugate and residual."""

from __future__ import annotations

import abc
import math
from typing import NamedTuple

import torch
from torch import Tensor

from lmd.core.batching import Part, to_double
from lmd.errors import CapabilityError

Scale = float | Tensor
"""A number, one per instance `(B,)`, or a tensor that broadcasts to the array and has as many dimensions."""


def take(which: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` for the instances in `which` `(B,)` and `old` for the others; no copy if all are from one tensor."""
    if bool(which.all()):
        return new
    return torch.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old) if bool(which.any()) else old


def per_instance(scale: Scale, like: Tensor) -> Scale:
    """Return a scale `(B,)` in the shape `(B, 1, ...)`, with the dimensions of `like`, and other scales unchanged."""
    if isinstance(scale, Tensor) and scale.ndim == 1:
        return scale.reshape(-1, *(1,) * (like.ndim - 1))
    return scale


def filled(scale: Scale, like: Tensor) -> Tensor:
    """Return the scale as a tensor that broadcasts against `like`; a number takes the dtype of `like`."""
    scale = per_instance(scale, like)
    return scale if isinstance(scale, Tensor) else like.new_full((), scale)


def sum_instances(x: Tensor) -> Tensor:
    """Return the sum over each instance: `(B, ...)` to `(B,)`."""
    return x.flatten(1).sum(dim=1)


def add_scaled(x: Tensor, scale: Scale, direction: Tensor) -> Tensor:
    """Return x + scale * direction, computed in one pass."""
    factor = per_instance(scale, x)
    if isinstance(factor, Tensor):
        return torch.addcmul(x, direction, factor)
    return torch.add(x, direction, alpha=factor)


def weighted_sum(weight: Scale, x: Tensor) -> Tensor:
    """Return the sum of weight * x over each instance, `(B,)`."""
    if isinstance(weight, Tensor) and weight.ndim > 1:
        return sum_instances(weight * x)
    return weight * sum_instances(x)


def size_of(x: Tensor) -> Tensor:
    """Return the Euclidean norm of each instance: `(B, ...)` to `(B,)`."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Return <x, y> of each instance, `(B,)`."""
    return sum_instances(x * y)


def max_scale(scale: Scale) -> Scale:
    """Return the largest entry of each instance: a number or `(B,)`."""
    return scale.flatten(1).amax(dim=1) if isinstance(scale, Tensor) and scale.ndim > 1 else scale


def min_scale(scale: Scale) -> Scale:
    """Return the smallest entry of each instance: a number or `(B,)`."""
    return scale.flatten(1).amin(dim=1) if isinstance(scale, Tensor) and scale.ndim > 1 else scale


def is_positive(scale: Scale) -> bool:
    """Return whether every entry is above 0."""
    return bool((scale > 0).all()) if isinstance(scale, Tensor) else scale > 0


def clip(x: Tensor, low: Scale, high: Scale) -> Tensor:
    """Clip x to [low, high]; for bounds that broadcast, `torch.clamp` is ten times slower than these two passes."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return torch.minimum(torch.maximum(x, filled(low, x)), filled(high, x))
    return torch.clamp(x, low, high)


def rounding_of_sum(x: Tensor, total: Tensor) -> Tensor:
    """Bound the rounding of a sum of nonnegative numbers over each instance of x, `(B,)`; see docs/guarantees.md."""
    return (x[0].numel() + 8) * torch.finfo(x.dtype).eps * total


class Pieces(NamedTuple):
    r"""h(z) = \sum_i c z_i^2 / 2 + s z_i + w max(0, k - z_i) over low <= z <= high, up to a constant per instance.

    Each field is a number, one per instance `(B,)`, or one per entry.
    """

    curvature: Scale = 0.0  # c
    slope: Scale = 0.0  # s
    fold: Scale = 0.0  # w
    kink: Scale = 0.0  # k
    low: Scale = -math.inf
    high: Scale = math.inf
    total: float | None = None  # the required sum of all entries of an instance; None for any sum


class Term(Part, abc.ABC):
    r"""A convex function h of one array per instance: z `(B, ...)` to `(B,)`.

    With the conjugate h*(p) = sup_z <z, p> - h(z), the Fenchel-Young inequality is h(z) + h*(p) >= <z, p>. Both sides
    are equal if p is a subgradient of h at z. Their difference is the `residual`; duality gaps are sums of residuals.
    A new term has to define `value`; everything else has a default or is a capability that a composite may ask for
    ([Parikh and Boyd 2014](https://web.stanford.edu/~boyd/papers/prox_algs.html) list the closed forms).

    A `step` is a number or one per instance `(B,)`. All methods are differentiable in the points and in the tensors of
    the term.

    >>> class Quartic(Term):
    ...     def value(self, z):
    ...         return (z**4).sum(dim=1)
    >>> Quartic().subgradient(torch.tensor([[1.0, 2.0]]))
    tensor([[ 4., 32.]])
    """

    mask: Tensor | None = None
    """1 for known and 0 for unknown entries of z, broadcasting against z; None if all are known."""

    @property
    def counted(self) -> Tensor | None:
        """Which entries of z the value depends on, as booleans that broadcast against z; None means all."""
        return None

    zero_is_exact: bool = False
    """Whether h >= 0 and a computed value of 0 means that h(z) is 0 exactly, without rounding."""

    @property
    def conjugate_is_finite(self) -> bool:
        """Whether h* is finite everywhere, so that every p is in its domain."""
        return False

    @property
    def conjugate_is_cone(self) -> bool:
        """Whether the domain of h* is a cone but not the whole space: positive scaling moves no point into it."""
        return False

    @property
    def quadratic(self) -> tuple[Tensor, Tensor] | None:
        """P `(n, n)` or `(B, n, n)` and q `(B, n)` if h(z) is z'Pz / 2 + q'z up to a constant; None otherwise."""
        return None

    def pieces(self, z: Tensor) -> Pieces | None:
        """Return h as `Pieces`, for arrays of the shape and dtype of z; None if h does not have this form."""
        return None

    @property
    def strong_convexity(self) -> Scale | None:
        """A strong convexity constant, a number or one per instance `(B,)`; None if there is none."""
        return None

    @property
    def smoothness(self) -> Scale | None:
        """A Lipschitz constant of the gradient where h is finite, a number or `(B,)`; None if there is none."""
        return None

    @abc.abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """Return h(z) `(B,)`."""

    def subgradient(self, z: Tensor) -> Tensor:
        """Return a subgradient of h at z in the domain of h, same shape as z; the default uses autograd."""
        recording = torch.is_grad_enabled() and z.requires_grad
        with torch.enable_grad():
            point = z if recording else z.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.value(point).sum(), point, create_graph=recording)
        return gradient

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor | None:
        """Return where z stays at a kink of h under small changes, for a subgradient p at z; None means nowhere.

        The booleans broadcast against z. They are true where prox(v) = z for all v near z + step p.
        """
        if self.smoothness is None:
            raise self._lacks("kinks")
        return None

    def steepness(self, z: Tensor) -> Scale:
        """Bound the norm of a subgradient at z: a number or `(B,)`."""
        return size_of(self.subgradient(z))

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        """Return argmin_v h(v) + ||v - z||^2 / (2 step), same shape as z."""
        raise self._lacks("prox")

    def conjugate(self, p: Tensor) -> Tensor:
        """Return h*(p) `(B,)` for p in the domain of h*."""
        raise self._lacks("conjugate")

    def project(self, p: Tensor) -> Tensor:
        """Return the nearest point of the domain of h*, same shape as p."""
        if not self.conjugate_is_finite:
            raise self._lacks("project")
        return p

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        """Return argmin_q h*(q) + ||q - p||^2 / (2 step) = p - step prox_{h/step}(p/step) (Moreau), same shape as p."""
        by = per_instance(step, p)
        return p - by * self.prox(p / by, 1 / step)

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        """Return argmin_z h(z) + <u, z>, a subgradient of h* at -u, for -u in the domain of h*; same shape as u."""
        raise self._lacks("tilted_minimiser")

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return h(z) + h*(p) - <z, p> >= 0 `(B,)` for p in the domain of h*; 0 if p is a subgradient of h at z.

        This default suffers from cancellation; terms that add up nonnegative numbers instead keep all digits.
        """
        return (self.value(z) + self.conjugate(p) - inner(z, p)).clamp(min=0)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound how far the computed `residual` can be below the residual of the true z and p, `(B,)`.

        The true points are in the domains of h and h*, at most `z_error` and `p_error` `(B,)` away in the Euclidean
        norm; the rounding of the evaluation itself is included.
        """
        raise self._lacks("rounding")

    def value_rounding(self, z: Tensor) -> Tensor:
        """Bound the rounding of the value, `(B,)`, beyond the rounding of sums of numbers of one sign."""
        return z.new_zeros(len(z))

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """Return the t in [-most, most] `(B,)` that maximises -h*(t p), or a good one, for p in the domain of h*.

        This default is min(1, most), for which t p is in the domain of h* if that domain contains 0.
        """
        ones = p.new_ones(len(p))
        return torch.minimum(ones, filled(most, ones))

    def gauge(self, u: Tensor) -> Tensor:
        """Return the smallest g >= 0 with u / g in the domain of h*, `(B,)`; infinite if there is none."""
        if not self.conjugate_is_finite:
            raise self._lacks("gauge")
        return u.new_zeros(len(u))

    def violation(self, z: Tensor) -> Tensor:
        """Return the distance of z to the domain of h, `(B,)`; 0 inside."""
        nearest = self.nearest(z)
        return z.new_zeros(len(z)) if nearest is z else size_of(z - nearest)

    def nearest(self, z: Tensor) -> Tensor:
        """Return the nearest point of the domain of h; z itself if h is finite everywhere."""
        return z

    def fill_unknown(self, z: Tensor) -> Tensor:
        """Return z with its unknown entries replaced by a guess; z itself if all are known."""
        return z

    def with_mask(self, mask: Tensor) -> Term | None:
        """Return h summed over the kept entries only; None if h is not a sum over entries or does not support masks.

        The mask is 1 where an entry is kept and 0 where it is lost; it broadcasts against z.
        """
        return None

    def _best_end(self, p: Tensor, most: Scale) -> Tensor:
        """Return `best_multiple` for terms with h*(t p) = t h*(p): the better end of the interval of allowed t."""
        slope, gauge = self.conjugate(p), self.gauge(p)
        reach = torch.minimum(filled(most, slope), 1 / gauge.clamp(min=torch.finfo(p.dtype).tiny))
        return torch.where(slope > 0, -reach, reach)

    def data(self) -> list[Tensor]:
        """Return the tensors `(B, ...)` that hold data of each instance, including those of inner terms."""
        found = []
        for name, value in vars(self).items():
            if name in self.batched and isinstance(value, Tensor) and value.ndim > 0:
                found.append(value)
            parts = value if isinstance(value, tuple) else (value,)
            found += [tensor for part in parts if isinstance(part, Term) for tensor in part.data()]
        return found

    double = to_double  # certificates are evaluated in float64

    def _lacks(self, capability: str) -> CapabilityError:
        return CapabilityError("term", f"{type(self).__name__}, which has no {capability}", f"a term with {capability}")
