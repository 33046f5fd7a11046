"""Problems, which are batches of convex functions, and families, which sample problems."""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from lmd.core.batching import Index, Part, take_instances
from lmd.core.checks import check_same_kind, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.terms import Domain
from lmd.terms.base import Scale

P = TypeVar("P", bound="Problem")

START_FACTOR = 3.0  # factor by which the starts of a harder family are farther from the origin


def autograd_subgradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """`(values (B,), subgradients (B, ...))` of a batch of functions at `x`, by automatic differentiation.

    Works inside `torch.no_grad()`; where a graph is being recorded through `x`, the subgradient is part of it.
    """
    recording = torch.is_grad_enabled() and x.requires_grad
    with torch.enable_grad():
        point = x if recording else x.detach().requires_grad_()
        values = function(point)
        subgradient = None
        if values.requires_grad:
            (subgradient,) = torch.autograd.grad(values.sum(), point, create_graph=recording, allow_unused=True)
    if subgradient is None:
        accepted = "torch operations on x, or a `subgradient` method of the problem's own"
        raise InputError("value(x)", "a result that autograd cannot follow back to x", accepted)
    return (values, subgradient) if recording else (values.detach(), subgradient)


def flatten_data(data: Sequence[Tensor], name: str) -> Tensor:
    """Tensors `(B, ...)`, at least one, as one vector per instance `(B, m)`."""
    if not data:
        raise CapabilityError("problem", f"{name}, which has no data per instance", "one with `batched` tensors")
    return torch.cat([each.reshape(len(each), -1) for each in data], dim=1)


class Problem(Part, abc.ABC):
    """A batch of B convex functions f_1, ..., f_B.

    A problem of your own is a class with one method, `value`. Everything else has a default or is a capability that
    a solver may ask for: `domain`, `minimiser`, `smoothness`, `strong_convexity`, `terms`.

    >>> class Quartic(Problem):
    ...     def value(self, x):
    ...         return (x**4).sum(dim=1)
    >>> Quartic().subgradient(torch.tensor([[1.0, 2.0]]))
    tensor([[ 4., 32.]])
    """

    batched: ClassVar[tuple[str, ...]] = ()
    """Names of the tensor attributes whose first dimension is the instance; `select` indexes them."""

    domain: Domain | None = None  # the set to minimise over; None is the whole space

    reference: Tensor | None = None
    """Good solutions `(B, ...)` that came with the instances, for a training loss to compare with; mostly None."""

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """f_i(x_i) for each instance: x `(B, ...)` to `(B,)`."""

    def subgradient(self, x: Tensor) -> Tensor:
        """A subgradient of f_i at x_i for each instance: x `(B, ...)` to `(B, ...)`."""
        return autograd_subgradient(self.value, x)[1]

    def value_and_subgradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both at once; override where they share work."""
        if type(self).subgradient is Problem.subgradient:
            return autograd_subgradient(self.value, x)
        return self.value(x), self.subgradient(x)

    def fill_unknown(self, x: Tensor) -> Tensor:
        """Return x with its unknown entries replaced by a guess; x itself if all are known."""
        return x

    def smoothed_gradient(self, x: Tensor, width: Scale) -> tuple[Tensor, Tensor]:
        """The gradient `(B, ...)` of f smoothed by `width`, and the dual points `(B, ...)` it comes from.

        This default is for functions that are smooth already: the gradient itself, and no dual points, `(B, 0)`.
        """
        return self.subgradient(x), x.new_empty(len(x), 0)

    def mixed_gradient(self, x: Tensor, widths: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the smoothed gradients for several widths `(J,)` in shares `(J,)`, and that of the dual points.

        It is the gradient of the mean of the smoothed functions. A problem whose gradients share work overrides this.
        """
        parts = zip(*(self.smoothed_gradient(x, width) for width in widths), strict=True)
        gradient, dual = (functools.reduce(torch.add, map(torch.mul, shares, part)) for part in parts)
        return gradient, dual

    def smoothed_value(self, x: Tensor, width: Scale) -> Tensor:
        """The values of f smoothed by `width` `(B,)`: never above f, and nearer to it for smaller widths."""
        return self.value(x)

    @property
    def batch_size(self) -> int | None:
        """B, or None where the same function serves a batch of any size."""
        sizes = {int(getattr(self, name).shape[0]) for name in self.batched}
        return sizes.pop() if sizes else None

    def check_start(self, x0: Tensor) -> Tensor:
        """Return `x0` `(B, ...)` if it can start a run: as many instances as the problem has, of its dtype and device.

        Override, and call this first, to check more, such as the shape of an instance.
        """
        if self.batch_size not in (None, x0.shape[0]):
            raise InputError("x0", f"shape {shape_of(x0)}", f"{self.batch_size} instances, as the problem has")
        for name in self.batched:
            data = getattr(self, name)
            if data.dtype.is_floating_point:
                check_same_kind("x0", x0, f"the problem's {name}", data)
        return x0

    def select(self: P, index: Index) -> P:
        """Return the problem of some of the instances; a number selects a batch of one."""
        part = copy.copy(self)
        for name in (*self.batched, *(() if self.reference is None else ("reference",))):
            setattr(part, name, take_instances(getattr(self, name), index))
        return part

    def double(self: P) -> P | None:
        """The same problem in float64, in which proofs are evaluated; None where nothing is known of how to make it.

        For a problem of your own whose numbers are all in its attributes it is one line, `return to_double(self)`,
        with the function from `lmd.core.batching`.
        """
        return None

    def relaxed_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Finite values near points that break a constraint, and how far they are from it: both `(B,)`.

        Where `value` is not finite at a point outside the domain, it is that of the nearest point of the domain.
        """
        values, violation = self.value(x), x.new_zeros(len(x))
        if self.domain is None or bool((finite := torch.isfinite(values)).all()):
            return values, violation
        inside = self.domain.nearest(x)
        values = torch.where(finite, values, self.value(inside))
        distance = torch.linalg.vector_norm((inside - x).flatten(1), dim=1)
        return values, torch.where(finite, violation, distance)

    def data_vector(self) -> Tensor:
        """The data of each instance as one vector `(B, m)`: every `batched` floating-point tensor, flattened."""
        given = [getattr(self, name) for name in self.batched]
        return flatten_data([data for data in given if data.dtype.is_floating_point], type(self).__name__)

    @property
    def terms(self) -> int | None:
        """The number of terms that each function is a sum or mean of; None if it is not a sum."""
        return None

    def minibatch(self, indices: Tensor) -> Problem:
        """The problem of some of the `terms`, scaled such that over random indices its values are right on average."""
        raise NotImplementedError(f"{type(self).__name__} has no terms")

    def minimiser(self) -> Tensor:
        """The minimisers `(B, ...)` if they have a closed form."""
        accepted = "lmd.guarantees.minimiser(problem) or lmd.guarantees.minimum(problem), which find and certify them"
        raise CapabilityError("problem", f"{type(self).__name__}, which has no minimiser in closed form", accepted)

    def minimum(self) -> Tensor:
        """The minima `(B,)` if the minimisers have a closed form."""
        return self.value(self.minimiser())

    @property
    def smoothness(self) -> Tensor | None:
        """A Lipschitz constant of each gradient in the Euclidean norm, `(B,)` or `()`; None if there is none."""
        return None

    @property
    def strong_convexity(self) -> Tensor | None:
        """A strong convexity constant of each function in the Euclidean norm, `(B,)` or `()`; None if there is none."""
        return None


class FunctionProblem(Problem):
    """A plain convex function from points `(B, ...)` to values `(B,)` as a problem; subgradients are autograd's."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def value(self, x: Tensor) -> Tensor:
        return self.function(x)


def as_problem(problem: Problem | Callable[[Tensor], Tensor]) -> Problem:
    """`problem` itself, or a plain function of x as a problem.

    Args:
        problem: A problem, or a convex function from points `(B, ...)` to values `(B,)`.
    """
    if isinstance(problem, Problem):
        return problem
    if callable(problem):
        return FunctionProblem(problem)
    raise InputError("problem", type(problem).__name__, "an lmd.problems.Problem or a function of x")


def check_values(problem: Problem, values: object, x: Tensor) -> Tensor:
    """Return `values` if a problem's `value` answered with one number per instance of `x`."""
    name = f"{type(problem).__name__}.value(x)"
    if not isinstance(values, Tensor):
        raise InputError(name, type(values).__name__, "a torch tensor")
    if values.shape != (x.shape[0],):
        accepted = f"shape ({x.shape[0]},): one value per instance; sum over every dimension but the first"
        raise InputError(name, f"shape {shape_of(values)}", accepted)
    return values


def offers(problem: Problem, needs: tuple[str, ...]) -> bool:
    """Whether a problem has all of these capabilities: attributes that are not None, closed forms."""
    for capability in needs:
        if capability in ("minimiser", "minimum"):
            if type(problem).minimiser is Problem.minimiser:
                return False
        elif getattr(problem, capability, None) is None:
            return False
    return True


def check_capabilities(problem: Problem, needs: tuple[str, ...], solver: str) -> None:
    """Raise unless the problem offers what the solver needs of it."""
    if offers(problem, needs):
        return
    capability = next(each for each in needs if not offers(problem, (each,)))
    given, accepted = f"{type(problem).__name__}, which has no {capability}", f"a problem with a {capability}"
    raise CapabilityError("problem", given, f"{accepted}, which {solver} needs")


class Family(abc.ABC):
    """A distribution over problems and their starting points.

    >>> from lmd.problems import LeastSquaresFamily
    >>> problem, x0 = LeastSquaresFamily().sample(4, torch.Generator().manual_seed(0))
    >>> x0.shape
    torch.Size([4, 2])
    """

    name: str = "family"

    @abc.abstractmethod
    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        """`batch` instances and their starting points `(batch, ...)`, all randomness taken from `generator`."""

    def held_out(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        """Sample instances that `sample` does not return, if the family has enough of them."""
        return self.sample(batch, generator)

    @property
    def inside(self) -> Family:
        """The family inside a wrapper, or this family itself."""
        return self

    def harder(self) -> dict[str, Family]:
        """Return harder families by name, to test a solver that was trained on this one."""
        return {f"starts {START_FACTOR:g} times as far": FartherStarts(self)}

    def with_noise(self, noise: float) -> Family | None:
        """Return the family with another noise level; None if it has no noise level."""
        return None


class FartherStarts(Family):
    """A family with starting points farther from the origin, where the problems have no domain."""

    name = "farther-starts"

    def __init__(self, family: Family, factor: float = START_FACTOR) -> None:
        self.family, self.factor = family, factor

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        problem, x0 = self.family.sample(batch, generator)
        return problem, x0 if problem.domain is not None else self.factor * x0
