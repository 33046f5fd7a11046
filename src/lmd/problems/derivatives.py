"""Derivatives of minimisers with respect to the tensors of their problems: data, weights, maps of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmd.errors import CapabilityError, InputError
from lmd.operators.base import Map, conjugate_gradients
from lmd.problems.base import Problem, offers

# Residual of the linearised system at which conjugate gradients stop, relative to its right-hand side.
RESIDUAL_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
MAX_ITERATIONS = 2000  # iterations of conjugate gradients, at most


def check(problem: Problem) -> None:
    """Raise if `differentiate` does not support the problem."""
    if not offers(problem, ("differences", "gradient_smoothness")):
        given = f"{type(problem).__name__}, which has no differences along axes beside smooth terms"
        raise CapabilityError("problem", given, "a composite with them, such as TVDenoising")
    check_transforms()


def check_transforms() -> None:
    """Raise inside a torch.func transform, which cannot trace a solve."""
    if torch._C._functorch.maybe_current_level() is not None:
        accepted = "torch.autograd.grad or backward() in its place"
        raise InputError("differentiable", "a transform of torch.func", accepted)


def differentiate(problem: Problem, x: Tensor, dual: Tensor) -> Tensor:
    r"""Return the minimisers x `(B, ...)`, differentiable in every tensor of the problem that requires a gradient.

    In F(x) = f(x) + \sum_j g_j(K_j x), one K_j takes differences along axes, its g_j is a norm of them, and all other
    terms are smooth. If a difference (in the isotropic form, all differences of a pixel) is 0 and its dual entry is
    inside the ball, the difference stays 0 for small changes of the data. So x is constant on *regions*, and F is
    smooth on images constant on them. There 0 = P F'(x), with P the mean over regions. By the implicit function theorem

        dx = -(P F'' P)^{-1} P dF',

    where dF' is the change of F' with the data at fixed x. In anisotropic denoising F'' is a multiple of the identity,
    and dx is exactly the mean over regions ([Tibshirani and Taylor 2011](https://doi.org/10.1214/11-AOS878)). Otherwise
    P F'' P is inverted by conjugate gradients. Regions at an end of a box do not move, nor do regions without
    curvature, such as holes.

    Memory does not grow with iterations. The regions are taken from x and `dual`. The derivative is correct if they are
    the regions of the minimiser, which requires a small gap.
    """
    check(problem)
    system = _System(problem, x.detach(), dual)
    with torch.enable_grad():
        force = problem.subgradient(system.x)
    if not force.requires_grad:
        raise InputError("problem", "data and weights that require no gradients", "a tensor that does among them")
    return _apply(force, x.detach(), system.solve)


class _Minimiser(torch.autograd.Function):
    """x as a function of F'(x): if the data change F'(x) by d, then x moves by -(P F'' P)^{-1} P d."""

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
    """The linear system P F'' P at a solution: its regions, and the solution replaced by its mean on each region."""

    def __init__(self, problem: Any, x: Tensor, dual: Tensor) -> None:
        self.problem = problem
        with torch.no_grad():
            z, step = problem.differences(x), 1 / problem.gradient_smoothness
            kinks = problem.variation.kinks(z, problem.differences_part(dual), step)  # differences that stay 0
            held = problem.f.kinks(x, problem.operator.adjoint(dual).neg_(), step)  # x that stays at an end
            every = torch.arange(x.numel(), device=x.device)
            self.regions = every if kinks is None else _regions(x, kinks.expand_as(z))
            self.sizes = self._sums(torch.ones_like(x))
            self.free = torch.ones_like(self.sizes)
            self.x = self.project(x)
            if held is not None:
                self.free = (self._sums(held.expand_as(x).to(x)) == 0).to(x)

    def _sums(self, v: Tensor) -> Tensor:
        """Return the sum of v over each region, flattened; it is stored at the first pixel of the region."""
        return v.new_zeros(v.numel()).index_add_(0, self.regions, v.flatten())

    def project(self, v: Tensor) -> Tensor:
        """Return P v: the mean over each region that is free to move, and 0 on the others."""
        return (self._sums(v) / self.sizes * self.free)[self.regions].view_as(v)

    def solve(self, v: Tensor) -> Tensor:
        """Return (P F'' P)^{-1} P v, and 0 on regions without curvature, where F'' times a random change is 0."""
        with torch.enable_grad():
            x = self.x.clone().requires_grad_()
            force = self.problem.subgradient(x)

        def bend(q: Tensor) -> Tensor:
            (product,) = torch.autograd.grad(force, x, q, retain_graph=True)
            return self.project(product)

        change = torch.rand(v.shape, generator=torch.Generator().manual_seed(0), dtype=v.dtype, device="cpu")
        bent = bend(self.project(change.to(v.device)))
        tolerance = RESIDUAL_TOLERANCE[v.dtype]
        return conjugate_gradients(bend, torch.where(bent == 0, 0, self.project(v)), tolerance, MAX_ITERATIONS)


def _regions(x: Tensor, kinks: Tensor) -> Tensor:
    """Return, for each pixel of x `(B, C, *size)`, the index of the first pixel of its region; flattened.

    `kinks` `(B, C, axes, *size)` marks the differences to the next pixel that stay 0. Each root takes the least root of
    its neighbours until none changes; the number of rounds is about the logarithm of the number of pixels
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
