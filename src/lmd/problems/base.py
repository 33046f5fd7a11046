"""Problems (batches of convex functions), sums of a problem and a term, and families, which sample problems."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from lmd.core.batching import Part
from lmd.core.checks import check_same_kind, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.terms import Domain, Term
from lmd.terms.base import Scale

P = TypeVar("P", bound="Problem")

START_FACTOR = 3.0  # factor by which the starts of a harder family are farther from the origin


def autograd_subgradient(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return `(values (B,), subgradients (B, ...))` of a batch of functions at `x`, by automatic differentiation.

    This works inside `torch.no_grad()`. If autograd records operations on `x`, the subgradient is part of the graph.
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
    """Flatten tensors `(B, ...)`, at least one, and join them to one vector per instance `(B, m)`."""
    if not data:
        raise CapabilityError("problem", f"{name}, which has no data per instance", "one with `batched` tensors")
    return torch.cat([each.reshape(len(each), -1) for each in data], dim=1)


class Problem(Part, abc.ABC):
    """A batch of B convex functions f_1, ..., f_B.

    To define your own problem, write a class with one method, `value`. Everything else has a default or is a capability
    that some solvers need: `domain`, `minimiser`, `smoothness`, `strong_convexity`, `terms`.

    >>> class Quartic(Problem):
    ...     def value(self, x):
    ...         return (x**4).sum(dim=1)
    >>> Quartic().subgradient(torch.tensor([[1.0, 2.0]]))
    tensor([[ 4., 32.]])
    """

    always_batched: ClassVar[tuple[str, ...]] = ("reference",)

    domain: Domain | None = None  # the set to minimise over; None is the whole space

    point_shape: torch.Size | None = None  # the shape of one instance of x, if known; `check_start` checks it

    reference: Tensor | None = None
    """Good solutions `(B, ...)`, with which a training loss can compare; None for most problems."""

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """Return f_i(x_i) for each instance: x `(B, ...)` to `(B,)`."""

    def subgradient(self, x: Tensor) -> Tensor:
        """Return a subgradient of f_i at x_i for each instance: x `(B, ...)` to `(B, ...)`."""
        return autograd_subgradient(self.value, x)[1]

    def value_and_subgradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and subgradients; override this method if they share work."""
        if type(self).subgradient is Problem.subgradient:
            return autograd_subgradient(self.value, x)
        return self.value(x), self.subgradient(x)

    def fill_unknown(self, x: Tensor) -> Tensor:
        """Return x with its unknown entries replaced by a guess; x itself if all are known."""
        return x

    def smoothed_gradient(self, x: Tensor, width: Scale) -> tuple[Tensor, Tensor]:
        """Return the gradient `(B, ...)` of f smoothed by `width`, and the dual points `(B, ...)` that give it.

        This default is for smooth functions: it returns the gradient of f, and empty dual points `(B, 0)`.
        """
        return self.subgradient(x), x.new_empty(len(x), 0)

    def mixed_gradient(self, x: Tensor, widths: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of smoothed gradients and of dual points for widths `(J,)`, weighted by shares `(J,)`.

        The first is the gradient of the mean of the smoothed functions. Override this if the gradients share work.
        """
        parts = zip(*(self.smoothed_gradient(x, width) for width in widths), strict=True)
        gradient, dual = (functools.reduce(torch.add, map(torch.mul, shares, part)) for part in parts)
        return gradient, dual

    def smoothed_value(self, x: Tensor, width: Scale) -> Tensor:
        """Return the values `(B,)` of f smoothed by `width`: never above f, and closer to f for smaller widths."""
        return self.value(x)

    @property
    def batch_size(self) -> int | None:
        """B, or None if the same function serves a batch of any size."""
        sizes = {int(getattr(self, name).shape[0]) for name in self.batched}
        return sizes.pop() if sizes else None

    def check_start(self, x0: Tensor) -> Tensor:
        """Return `x0` `(B, ...)` if its number of instances, shape, dtype and device fit the problem.

        To check more, override this method and call it first.
        """
        if self.batch_size not in (None, x0.shape[0]):
            raise InputError("x0", f"shape {shape_of(x0)}", f"{self.batch_size} instances, as the problem has")
        if self.point_shape not in (None, x0.shape[1:]):
            accepted = ", ".join(map(str, (self.batch_size or "B", *self.point_shape)))
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape ({accepted}), as the problem has")
        for name in self.batched:
            data = getattr(self, name)
            if data.dtype.is_floating_point:
                check_same_kind("x0", x0, f"the problem's {name}", data)
        return x0

    def double(self: P) -> P | None:
        """Return the problem in float64, in which proofs are evaluated; None if the problem cannot be converted.

        If all tensors of your problem are attributes, write `return to_double(self)`, with the function from
        `lmd.core.batching`.
        """
        return None

    def relaxed_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return finite values at points that may violate constraints, and their distances to the domain: both `(B,)`.

        If `value` is not finite at a point outside the domain, the value is taken at the nearest point of the domain.
        """
        values, violation = self.value(x), x.new_zeros(len(x))
        if self.domain is None or bool((finite := torch.isfinite(values)).all()):
            return values, violation
        inside = self.domain.nearest(x)
        values = torch.where(finite, values, self.value(inside))
        distance = torch.linalg.vector_norm((inside - x).flatten(1), dim=1)
        return values, torch.where(finite, violation, distance)

    def data_vector(self) -> Tensor:
        """Return the data of each instance as one vector `(B, m)`: all `batched` floating-point tensors, flattened."""
        given = [getattr(self, name) for name in self.batched]
        return flatten_data([data for data in given if data.dtype.is_floating_point], type(self).__name__)

    @property
    def terms(self) -> int | None:
        """The number of terms that each function is a sum or mean of; None if it is not a sum."""
        return None

    def minibatch(self, indices: Tensor) -> Problem:
        """Return the problem with some of the `terms`, scaled such that its values are unbiased for random indices."""
        raise NotImplementedError(f"{type(self).__name__} has no terms")

    def minimiser(self) -> Tensor:
        """Return the minimisers `(B, ...)` if they have a closed form."""
        accepted = "lmd.guarantees.minimiser(problem) or lmd.guarantees.minimum(problem), which find and certify them"
        raise CapabilityError("problem", f"{type(self).__name__}, which has no minimiser in closed form", accepted)

    def minimum(self) -> Tensor:
        """Return the minima `(B,)` if the minimisers have a closed form."""
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
    """A plain convex function from points `(B, ...)` to values `(B,)` as a problem; autograd computes subgradients."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def value(self, x: Tensor) -> Tensor:
        return self.function(x)


def as_problem(problem: Problem | Callable[[Tensor], Tensor]) -> Problem:
    """Return `problem` itself, or wrap a plain function of x as a problem.

    Args:
        problem: A problem, or a convex function from points `(B, ...)` to values `(B,)`.
    """
    if isinstance(problem, Problem):
        return problem
    if callable(problem):
        return FunctionProblem(problem)
    raise InputError("problem", type(problem).__name__, "an lmd.problems.Problem or a function of x")


def check_values(problem: Problem, values: object, x: Tensor) -> Tensor:
    """Return `values`, the result of a problem's `value`, if they are one number per instance of `x`."""
    name = f"{type(problem).__name__}.value(x)"
    if not isinstance(values, Tensor):
        raise InputError(name, type(values).__name__, "a torch tensor")
    if values.shape != (x.shape[0],):
        accepted = f"shape ({x.shape[0]},): one value per instance; sum over every dimension but the first"
        raise InputError(name, f"shape {shape_of(values)}", accepted)
    return values


def offers(problem: Problem, needs: tuple[str, ...]) -> bool:
    """Return whether a problem has all of these capabilities: attributes that are not None, or a closed-form minimiser.

    A dotted name such as "f.strong_convexity" is an attribute of an attribute.
    """
    for capability in needs:
        if capability in ("minimiser", "minimum"):
            if type(problem).minimiser is Problem.minimiser:
                return False
            continue
        part: object = problem
        for name in capability.split("."):
            part = getattr(part, name, None)
        if part is None:
            return False
    return True


def check_capabilities(problem: Problem, needs: tuple[str, ...], solver: str) -> None:
    """Raise unless the problem has all capabilities that the solver needs."""
    if offers(problem, needs):
        return
    capability = next(each for each in needs if not offers(problem, (each,)))
    given, accepted = f"{type(problem).__name__}, which has no {capability}", f"a problem with a {capability}"
    raise CapabilityError("problem", given, f"{accepted}, which {solver} needs")


class PenalisedProblem(Problem):
    """f + g over the domain of f: `problem` is f, `penalty` is the term g. If f has several terms, use `Composite`.

    Args:
        problem: f, any problem.
        penalty: g, any term.

    >>> from lmd.problems.simplex import KLDivergence
    >>> from lmd.terms import NegativeEntropy
    >>> y = torch.tensor([[0.5, 0.5]])
    >>> PenalisedProblem(KLDivergence(y), NegativeEntropy(2.0)).value(y)
    tensor([-1.3863])
    """

    def __init__(self, problem: Problem, penalty: Term) -> None:
        self.problem, self.penalty, self.domain = problem, penalty, problem.domain

    @property
    def batch_size(self) -> int | None:
        return self.problem.batch_size

    def misfit_gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of f."""
        return self.problem.subgradient(x)

    def check_start(self, x0: Tensor) -> Tensor:
        return self.problem.check_start(x0)

    def double(self) -> PenalisedProblem | None:
        exact = self.problem.double()
        return None if exact is None else PenalisedProblem(exact, self.penalty.double())

    def value(self, x: Tensor) -> Tensor:
        return self.problem.value(x) + self.penalty.value(x)

    def subgradient(self, x: Tensor) -> Tensor:
        return self.problem.subgradient(x) + self.penalty.subgradient(x)

    @property
    def strong_convexity(self) -> Tensor | None:
        return self.problem.strong_convexity

    @property
    def terms(self) -> int | None:
        return self.problem.terms

    def minibatch(self, indices: Tensor) -> PenalisedProblem:
        return PenalisedProblem(self.problem.minibatch(indices), self.penalty)


class Split(NamedTuple):
    """A problem as a smooth function plus a term with a prox: its penalty, or the indicator of its domain."""

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    term: Term | None  # None if the problem has no penalty and no domain

    def prox(self, x: Tensor, step: Scale) -> Tensor:
        """Return argmin_v h(v) + ||v - x||^2 / (2 step) for the term h, or x if there is no term."""
        return x if self.term is None else self.term.prox(x, step)


def split_of(problem: Any) -> Split:
    """Split a problem into the parts that proximal methods need; with a domain, the function includes a penalty."""
    if not isinstance(problem, PenalisedProblem) or problem.domain is not None:
        return Split(problem.value, problem.subgradient, problem.domain)
    return Split(problem.problem.value, problem.misfit_gradient, problem.penalty)


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
        """Return `batch` instances and their starting points `(batch, ...)`, drawn with `generator` only."""

    def held_out(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        """Sample instances that `sample` does not return, if the family has enough of them."""
        return self.sample(batch, generator)

    @property
    def inside(self) -> Family:
        """The wrapped family, or this family itself if it wraps none."""
        return self

    def harder(self) -> dict[str, Family]:
        """Return harder families by name, to test a solver that was trained on this one."""
        return {f"starts {START_FACTOR:g} times as far": FartherStarts(self)}

    def with_noise(self, noise: float) -> Family | None:
        """Return the family with another noise level; None if it has no noise level."""
        return None


class FartherStarts(Family):
    """A family with starting points farther from the origin, if its problems have no domain."""

    def __init__(self, family: Family) -> None:
        self.family = family

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        problem, x0 = self.family.sample(batch, generator)
        return problem, x0 if problem.domain is not None else START_FACTOR * x0
