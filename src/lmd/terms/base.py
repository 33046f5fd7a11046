"""Terms: convex functions of one array per instance, with prox, conjugate and residual."""

from __future__ import annotations

import abc
import copy
import math
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from lmd.core.batching import Index, Part, take_instances, to_double
from lmd.core.checks import check_finite, check_floating, check_positive, shape_of
from lmd.errors import CapabilityError, InputError

T = TypeVar("T", bound="Term")

Scale = float | Tensor
"""A number, one per instance `(B,)`, or one per entry: as many dimensions as the array, and broadcasting against it."""


def per_instance(scale: Scale, like: Tensor) -> Scale:
    """A number as it is; one per instance `(B,)` in the shape `(B, 1, ...)` that multiplies `like`."""
    if isinstance(scale, Tensor) and scale.ndim == 1:
        return scale.reshape(-1, *(1,) * (like.ndim - 1))
    return scale


def filled(scale: Scale, like: Tensor) -> Tensor:
    """The scale as a tensor that broadcasts against `like`, of its dtype."""
    scale = per_instance(scale, like)
    return scale if isinstance(scale, Tensor) else like.new_full((), scale)


def sum_instances(x: Tensor) -> Tensor:
    """The sum over each instance: `(B, ...)` to `(B,)`."""
    return x.flatten(1).sum(dim=1)


def add_scaled(x: Tensor, scale: Scale, direction: Tensor, out: Tensor | None = None) -> Tensor:
    """x + scale * direction in one pass, into `out` where it is given."""
    factor = per_instance(scale, x)
    if out is x:
        return x.addcmul_(direction, factor) if isinstance(factor, Tensor) else x.add_(direction, alpha=factor)
    if isinstance(factor, Tensor):
        return torch.addcmul(x, direction, factor, out=out)
    return torch.add(x, direction, alpha=factor, out=out)


def weighted_sum(weight: Scale, x: Tensor) -> Tensor:
    """sum weight x over each instance `(B,)`."""
    if isinstance(weight, Tensor) and weight.ndim > 1:
        return sum_instances(weight * x)
    return weight * sum_instances(x)


def size_of(x: Tensor) -> Tensor:
    """The Euclidean norm of each instance: `(B, ...)` to `(B,)`."""
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """<x, y> of each instance `(B,)`."""
    return sum_instances(x * y)


def max_scale(scale: Scale) -> Scale:
    """The largest entry of each instance: a number or `(B,)`."""
    return scale.flatten(1).amax(dim=1) if isinstance(scale, Tensor) and scale.ndim > 1 else scale


def min_scale(scale: Scale) -> Scale:
    """The smallest entry of each instance: a number or `(B,)`."""
    return scale.flatten(1).amin(dim=1) if isinstance(scale, Tensor) and scale.ndim > 1 else scale


def is_positive(scale: Scale) -> bool:
    """Whether every entry is above 0."""
    return bool((scale > 0).all()) if isinstance(scale, Tensor) else scale > 0


def divide_or_zero(x: Tensor, by: Scale) -> Tensor:
    """x / by, and 0 where `by` is 0, with the derivative 0 there."""
    if not isinstance(by, Tensor):
        return x / by
    usable = by != 0
    return torch.where(usable, x / torch.where(usable, by, 1), 0)


def clip(x: Tensor, low: Scale, high: Scale, out: Tensor | None = None) -> Tensor:
    """x within [low, high]; for bounds that broadcast torch's own clamp is ten times slower than these two passes."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        return torch.minimum(torch.maximum(x, filled(low, x), out=out), filled(high, x), out=out)
    return torch.clamp(x, low, high, out=out)


def write_to(answer: Tensor, out: Tensor | None) -> Tensor:
    """The answer, in `out` where that is given."""
    return answer if out is None else out.copy_(answer)


def rounding_of_sum(x: Tensor, total: Tensor) -> Tensor:
    """Bound on the rounding of a sum of nonnegative numbers over an instance of x `(B,)`: docs/guarantees.md."""
    return (x[0].numel() + 8) * torch.finfo(x.dtype).eps * total


def check_scale(argument: str, scale: Scale, *, zero: bool = False) -> Scale:
    """Return `scale` if it is a positive number, or a tensor of positive numbers or, with `zero`, of 0 or more."""
    if not isinstance(scale, Tensor):
        return scale if isinstance(scale, float) and 0 < scale < math.inf else check_positive(argument, scale)
    least = float(check_finite(argument, check_floating(argument, scale)).detach().min())
    if least < 0 or (least == 0 and not zero):
        raise InputError(argument, f"{least:g}", "numbers of 0 or more" if zero else "positive numbers")
    return scale


def check_fits(argument: str, scale: Scale, y: Tensor) -> Scale:
    """Return `scale` if it is a number, one per instance of y, or broadcasts against y and has its instances."""
    if not isinstance(scale, Tensor) or scale.shape in ((), y.shape[:1]):
        return scale
    pairs = zip(scale.shape[1:], y.shape[1:], strict=False)
    if scale.ndim != y.ndim or len(scale) != len(y) or any(n not in (1, m) for n, m in pairs):
        accepted = f"one number, one per instance ({len(y)},), or entries that go with {shape_of(y)}"
        raise InputError(argument, f"shape {shape_of(scale)}", accepted)
    return scale


class Pieces(NamedTuple):
    r"""h(z) = \sum_i c z_i^2 / 2 + s z_i + w max(0, k - z_i) over low <= z <= high, up to a number for each instance.

    Each is a number, one per instance `(B,)`, or one per entry.
    """

    curvature: Scale = 0.0  # c
    slope: Scale = 0.0  # s
    fold: Scale = 0.0  # w
    kink: Scale = 0.0  # k
    low: Scale = -math.inf
    high: Scale = math.inf
    total: float | None = None  # the sum of all entries of an instance, where it is constrained


class Term(Part, abc.ABC):
    r"""A convex function h of one array per instance: z `(B, ...)` to `(B,)`.

    With h*(p) = sup_z <z, p> - h(z) the Fenchel-Young inequality is h(z) + h*(p) >= <z, p>, with equality where p is a
    subgradient of h at z; the difference is the `residual`, of which duality gaps are made. A term of your own needs
    `value`; everything else has a default or is a capability that a composite may ask for
    ([Parikh and Boyd 2014](https://web.stanford.edu/~boyd/papers/prox_algs.html) list the closed forms).

    A `step` is a number or one per instance `(B,)`. Methods with `out` write their answer there if given; it may be
    one of their arguments. Without `out` everything has derivatives, in the points and in the term's own tensors.

    >>> class Quartic(Term):
    ...     def value(self, z):
    ...         return (z**4).sum(dim=1)
    >>> Quartic().subgradient(torch.tensor([[1.0, 2.0]]))
    tensor([[ 4., 32.]])
    """

    batched: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that, where they are tensors, have the instance for their first dimension."""

    @property
    def mask(self) -> Tensor | None:
        """1 for entries that count and 0 for unknown ones, if there are any; broadcasts against z."""
        return None

    @property
    def counted(self) -> Tensor | None:
        """Which entries of z the value depends on, as booleans that broadcast against z; None is all of them."""
        return None

    @property
    def zero_is_exact(self) -> bool:
        """Whether h is never below 0, and a value of 0 means that it is so without rounding: h of what is the same."""
        return False

    @property
    def conjugate_is_finite(self) -> bool:
        """Whether h* is finite everywhere: whether the domain of the dual is everything."""
        return False

    @property
    def conjugate_is_cone(self) -> bool:
        """Whether the domain of h* is a cone that is not everything: no multiple of a point outside is in it."""
        return False

    @property
    def quadratic(self) -> tuple[Tensor, Tensor] | None:
        """P `(n, n)` or `(B, n, n)` and q `(B, n)`, where h(z) is z'Pz / 2 + q'z with a matrix P."""
        return None

    def pieces(self, z: Tensor) -> Pieces | None:
        """h as a sum of squares, slopes and folds over bounds, for arrays like z; None where it is no such sum."""
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
        """h(z) `(B,)`."""

    def subgradient(self, z: Tensor) -> Tensor:
        """A subgradient of h at z of its domain, same shape as z; by automatic differentiation."""
        recording = torch.is_grad_enabled() and z.requires_grad
        with torch.enable_grad():
            point = z if recording else z.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.value(point).sum(), point, create_graph=recording)
        return gradient

    def kinks(self, z: Tensor, p: Tensor, step: Scale) -> Tensor | None:
        """Where z stays at a kink of h under small changes, for p a subgradient at z; None: nowhere.

        True and false, broadcasting against z: where prox(z + step p), which is z, does not follow z + step p.
        """
        if self.smoothness is None:
            raise self._lacks("kinks")
        return None

    def steepness(self, z: Tensor) -> Scale:
        """A bound on the length of a subgradient at z, a number or `(B,)`."""
        return size_of(self.subgradient(z))

    def prox(self, z: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """argmin_v h(v) + ||v - z||^2 / (2 step), same shape as z."""
        raise self._lacks("prox")

    def conjugate(self, p: Tensor) -> Tensor:
        """h*(p) `(B,)` for p in the domain of h*."""
        raise self._lacks("conjugate")

    def project(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """The nearest point of the domain of h*, same shape as p."""
        if not self.conjugate_is_finite:
            raise self._lacks("project")
        return write_to(p, out)

    def conjugate_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """argmin_q h*(q) + ||q - p||^2 / (2 step), same shape as p: p - step prox_{h/step}(p/step), by Moreau."""
        by = per_instance(step, p)
        return torch.sub(p, by * self.prox(p / by, 1 / step), out=out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """argmin_z h(z) + <u, z>, a subgradient of h* at -u; for -u in the domain of h*, same shape as u."""
        raise self._lacks("tilted_minimiser")

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """h(z) + h*(p) - <z, p> >= 0 `(B,)` for p in the domain of h*; 0 where p is a subgradient of h at z.

        This default cancels; a term that adds it up from what is never negative keeps its digits.
        """
        return (self.value(z) + self.conjugate(p) - inner(z, p)).clamp(min=0)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound on the amount by which the computed `residual` can be below that of the true z and p `(B,)`.

        The true points are in the domains of h and h*, at most `z_error` and `p_error` `(B,)` away in the Euclidean
        norm; the rounding of the evaluation itself is included.
        """
        raise self._lacks("rounding")

    def value_rounding(self, z: Tensor) -> Tensor:
        """Bound on the rounding of the value `(B,)`, beyond that of sums of numbers of one sign."""
        return z.new_zeros(len(z))

    def best_multiple(self, p: Tensor, most: Scale) -> Tensor:
        """The number t in [-most, most] for which -h*(t p) is largest, `(B,)`, p in the domain of h*; else a good one.

        1 where that is allowed: it keeps p, and less keeps p in the domain, which has 0 in it.
        """
        ones = p.new_ones(len(p))
        return torch.minimum(ones, filled(most, ones))

    def gauge(self, u: Tensor) -> Tensor:
        """The smallest number g of 0 or more with u / g in the domain of h*, `(B,)`; infinite where there is none."""
        if not self.conjugate_is_finite:
            raise self._lacks("gauge")
        return u.new_zeros(len(u))

    def violation(self, z: Tensor) -> Tensor:
        """Distance of z to the domain of h `(B,)`; 0 inside."""
        return z.new_zeros(len(z))

    def nearest(self, z: Tensor) -> Tensor:
        """Return the nearest point of the domain of h; z itself if h is finite everywhere."""
        return z

    def fill_unknown(self, z: Tensor) -> Tensor:
        """Return z with its unknown entries replaced by a guess; z itself if all are known."""
        return z

    def with_mask(self, mask: Tensor) -> Term | None:
        """h of z with some entries lost, as one of z itself, where it is a sum over entries and knows how.

        The mask is 1 where an entry is kept and 0 where it is lost; it broadcasts against z.
        """
        return None

    def data(self) -> list[Tensor]:
        """The tensors `(B, ...)` that it holds for each instance, those of the terms in it included."""
        found = []
        for name, value in vars(self).items():
            if name in self.batched and isinstance(value, Tensor) and value.ndim > 0:
                found.append(value)
            parts = value if isinstance(value, tuple) else (value,)
            found += [tensor for part in parts if isinstance(part, Term) for tensor in part.data()]
        return found

    def select(self: T, index: Index) -> T:
        """Return the term for some of the instances; a number selects a batch of one."""
        part = copy.copy(self)
        for name, value in vars(self).items():
            if name in self.batched and isinstance(value, Tensor) and value.ndim > 0:
                setattr(part, name, take_instances(value, index))
            elif isinstance(value, Term):
                setattr(part, name, value.select(index))
            elif isinstance(value, tuple):
                setattr(part, name, tuple(v.select(index) if isinstance(v, Term) else v for v in value))
        return part

    def double(self: T) -> T:
        """Return the term with all floating-point tensors in float64 and no graph."""
        return to_double(self)

    def _lacks(self, capability: str) -> CapabilityError:
        return CapabilityError("term", f"{type(self).__name__}, which has no {capability}", f"a term with {capability}")
