"""Derivatives of minimisers by what their problems are made of: data, weights, maps of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmd.errors import CapabilityError, InputError
from lmd.problems.base import Problem, offers
from lmd.problems.composite import Composite
from lmd.terms.base import Scale, inner, per_instance, size_of

# Residual of the linearised system at which conjugate gradients stop, relative to its right-hand side.
RESIDUAL_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
MAX_ITERATIONS = 2000  # iterations of conjugate gradients, at most

Map = Callable[[Tensor], Tensor]


def check(problem: Problem) -> None:
    """Raise where `differentiate` could not."""
    if not offers(problem, ("differences", "gradient_smoothness")):
        given = f"{type(problem).__name__}, which has no differences along axes beside smooth terms"
        raise CapabilityError("problem", given, "a composite with them, such as TVDenoising")
    check_transforms()


def check_transforms() -> None:
    """Raise inside a transform of torch.func's, which cannot look into a solve."""
    if torch._C._functorch.maybe_current_level() is not None:
        accepted = "torch.autograd.grad or backward() in its place"
        raise InputError("differentiable", "a transform of torch.func", accepted)


def differentiate(problem: Problem, x: Tensor, dual: Tensor) -> Tensor:
    r"""The minimisers x `(B, ...)`, with derivatives by every tensor of the problem that requires them.

    Of F(x) = f(x) + \sum_j g_j(K_j x), where one K_j takes differences along axes and g_j is a norm of them, all other
    terms being smooth. Where a difference (the differences of a pixel, in the isotropic form) is 0 and its part of the
    dual point inside the ball, it stays 0 while data change a little: so x is constant on *regions*, and among such
    images F is smooth. There 0 = P F'(x), P the mean over regions, and by the implicit function theorem

        dx = -(P F'' P)^{-1} P dF',

    dF' the change of F' by the data alone. In anisotropic denoising F'' is a multiple of the identity: the derivative
    is the mean over regions, exactly ([Tibshirani and Taylor 2011](https://doi.org/10.1214/11-AOS878)). Otherwise
    P F'' P is inverted by conjugate gradients, which multiply with it. Regions that the end of a box holds do not move;
    nor do those that F is not bent in, such as holes.

    How a solution came about does not matter, so memory does not grow with iterations. The derivative is that of the
    regions that x and `dual` show: it is right where these are the minimiser's, which takes a small gap.
    """
    check(problem)
    system = _System(problem, x.detach(), dual)
    with torch.enable_grad():
        force = problem.subgradient(system.x)
    if not force.requires_grad:
        raise InputError("problem", "data and weights that require no gradients", "a tensor that does among them")
    return _apply(force, x.detach(), system.solve)


class _Minimiser(torch.autograd.Function):
    """x as a function of F'(x): a change d of the latter by the data moves x by -(P F'' P)^{-1} P d."""

    @staticmethod
    def forward(ctx: Any, force: Tensor, x: Tensor, solve: Map) -> Tensor:
        ctx.solve = solve
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise InputError("create_graph", True, "False: minimisers have first derivatives here, and no second ones")
        return ctx.solve(gradients[0]).neg_(), None, None


_apply: Callable[[Tensor, Tensor, Map], Tensor] = _Minimiser.apply


class _System:
    """P F'' P at a solution: its regions, and the solution with exactly the mean on each."""

    def __init__(self, problem: Any, x: Tensor, dual: Tensor) -> None:
        self.problem = problem
        with torch.no_grad():
            kinks, held = _kinks(problem, x, dual, 1 / problem.gradient_smoothness)
            self.regions = torch.arange(x.numel(), device=x.device) if kinks is None else _regions(x, kinks)
            self.sizes = self._sums(torch.ones_like(x))
            self.free = torch.ones_like(self.sizes)
            self.x = self.project(x)
            if held is not None:
                self.free = (self._sums(held.expand_as(x).to(x)) == 0).to(x)

    def _sums(self, v: Tensor) -> Tensor:
        """Over each region, at the place of its first pixel; flat."""
        return v.new_zeros(v.numel()).index_add_(0, self.regions, v.flatten())

    def project(self, v: Tensor) -> Tensor:
        """P v: the mean over each region that is free to move."""
        return (self._sums(v) / self.sizes * self.free)[self.regions].view_as(v)

    def solve(self, v: Tensor) -> Tensor:
        """(P F'' P)^{-1} P v, and 0 on regions that F is not bent in: none of a random change is seen there."""
        with torch.enable_grad():
            x = self.x.clone().requires_grad_()
            force = self.problem.subgradient(x)

        def bend(q: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(force, x, q, retain_graph=True)
            return self.project(product)

        change = torch.rand(v.shape, generator=torch.Generator().manual_seed(0), dtype=v.dtype, device="cpu")
        bent = bend(self.project(change.to(v.device)))
        return _conjugate_gradients(bend, torch.where(bent == 0, 0, self.project(v)))


def _kinks(problem: Composite, x: Tensor, dual: Tensor, step: Scale) -> tuple[Tensor | None, Tensor | None]:
    """Return where differences stay 0, and x at an end of its domain, under small changes of data; see `Term.kinks`."""
    z = problem.differences(x)
    kinks = problem.variation.kinks(z, problem.differences_part(dual), step)
    held = problem.f.kinks(x, problem.operator.adjoint(dual).neg_(), step)
    return None if kinks is None else kinks.expand_as(z), held


def _conjugate_gradients(multiply: Map, right: Tensor) -> Tensor:
    """The solution q of multiply(q) = right, each instance to `RESIDUAL_TOLERANCE`."""
    q, residual, direction = torch.zeros_like(right), right, right
    square, enough = inner(right, right), RESIDUAL_TOLERANCE[right.dtype] * size_of(right)
    for _ in range(MAX_ITERATIONS):
        going = square.sqrt() > enough
        if not bool(going.any()):
            break
        image = multiply(direction)
        along = inner(direction, image)
        step = per_instance(torch.where(going & (along > 0), square / torch.where(along > 0, along, 1), 0), q)
        q, residual = q + step * direction, residual - step * image
        before, square = square, inner(residual, residual)
        direction = residual + per_instance(square / torch.where(before > 0, before, 1), q) * direction
    return q


def _regions(x: Tensor, kinks: Tensor) -> Tensor:
    """For each pixel of x `(B, C, *size)` the first one of its region, flat.

    `kinks` `(B, C, axes, *size)` says which differences to the next pixel stay 0. Roots take the least root of their
    neighbours until none changes, in rounds of which there are about as many as the logarithm of the pixels
    ([Shiloach and Vishkin 1982](https://doi.org/10.1016/0196-6774(82)90008-6)).
    """
    places, pairs = torch.arange(x.numel(), device=x.device).view_as(x), []
    for axis, flat in enumerate(kinks.unbind(2), start=2):
        here, ahead = (places.narrow(axis, by, x.shape[axis] - 1) for by in (0, 1))
        flat = flat.narrow(axis, 0, x.shape[axis] - 1)
        pairs.append(torch.stack([here[flat], ahead[flat]]))
    one, other = torch.cat(pairs, dim=1)
    roots = places.flatten()
    while True:
        least = torch.minimum(roots[one], roots[other])
        found = roots.scatter_reduce(0, roots[one], least, "amin").scatter_reduce(0, roots[other], least, "amin")
        while not torch.equal(found, above := found[found]):
            found = above
        if torch.equal(found, roots):
            return roots
        roots = found
