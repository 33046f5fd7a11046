"""Reconstructions from measurements: ADMM with Anderson acceleration, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from lmd.core.extras import require
from lmd.reference.proof import Effort, Pair
from lmd.reference.total_variation import EVERY, RELAXATION

EFFORT = Effort(goal=1e-6, tolerance=1e-5, patience=1500 // EVERY, looks=20_000 // EVERY)
"""Isotropic problems may need the patience."""

MEMORY = 20
"""How many iterates the acceleration looks back on."""

RIDGE = 1e-10
"""How much the acceleration regularises its small linear system."""

PROBES = 8
"""How many random images measure the spectrum of A'A for the preconditioner."""

INNER = 2
"""Conjugate gradient iterations for each linear system; each starts where the last one ended."""

NEEDS = ("forward", "differences", "noisy", "halved", "weight", "data_prox", "variation", "dual_from")


def iterates(problem: Any) -> Iterator[Pair]:
    r"""Points and dual points `(1, ...)`, from every `EVERY` iterations one.

    ADMM on min s ||Ax - y||^2 + box(v) + g(z) over v = x, z = Kx, over-relaxed, as a fixed-point iteration of
    w = (v, z) + (their scaled duals), which Anderson's method accelerates (type II, each channel by itself, since
    channels do not mix; [Walker and Ni 2011](https://doi.org/10.1137/10078356X)). The dual point: p as ADMM has it
    before it is made feasible, and q = 2s (Ax - y), for which A'q + K'p is nearly 0 where x is inside the box.
    """
    admm = _ADMM(problem)
    w = admm.join(problem.start(), problem.differences(problem.start()))
    anderson = _Anderson(w)
    while True:
        for k in range(EVERY):
            moved, p = admm.step(w)
            if k == EVERY - 1:
                yield admm.answer(p)
            w = anderson.next(w, moved)


class _ADMM:
    """The fixed-point iteration; points w `(C, 3 H W)` hold v and z times the roots of their penalties."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        s = problem.scale
        # Found by trial on photographs: blurs of 1 to 2 pixels and 30 angles, weights of 0.03 to 0.3.
        self.v_penalty, self.z_penalty = 0.2 * s, 6.0 * s * float(problem.weight)
        self.x = problem.start()
        self.target = 2 * s * problem.forward.adjoint(problem.noisy)
        self.invert = self._preconditioner()

    def join(self, v: Tensor, z: Tensor) -> Tensor:
        return torch.cat([self.v_penalty**0.5 * v[0].flatten(1), self.z_penalty**0.5 * z[0].flatten(1)], dim=1)

    def _split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.problem.image_shape
        cut = shape[2] * shape[3]
        v, z = w[:, :cut] / self.v_penalty**0.5, w[:, cut:] / self.z_penalty**0.5
        return v.reshape(shape), z.reshape(*shape[:2], 2, *shape[2:])

    def step(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The next w, and p before it is made feasible."""
        K, a, r = self.problem.differences, self.v_penalty, self.z_penalty
        v_target, z_target = self._split(w)
        v = self.problem.data_prox(v_target, 1.0)
        v_dual = v_target - v
        z_dual = self.problem.variation.project(r * z_target) / r
        z = z_target - z_dual
        self._solve(self.target + a * (v - v_dual) + r * K.adjoint(z - z_dual))
        Kx = K(self.x)
        moved = self.join(v_dual + torch.lerp(v, self.x, RELAXATION), z_dual + torch.lerp(z, Kx, RELAXATION))
        return moved, r * (Kx - z + z_dual)

    def answer(self, p: Tensor) -> Pair:
        x = self.problem.data_prox(self.x, 1.0)
        return x, self.problem.dual_from(self.problem.variation.project(p), x)

    def _system(self, x: Tensor) -> Tensor:
        K, A = self.problem.differences, self.problem.forward
        return 2 * self.problem.scale * A.adjoint(A(x)) + self.z_penalty * K.adjoint(K(x)) + self.v_penalty * x

    def _preconditioner(self) -> Callable[[Tensor], Tensor]:
        """The inverse of the system's diagonal in the cosine basis: exact for K'K, estimated for A'A."""
        require("scipy")
        from scipy import fft

        def transform(x: Tensor) -> Tensor:
            return torch.from_numpy(fft.dctn(x.numpy(), axes=(-2, -1), norm="ortho"))

        def back(x: Tensor) -> Tensor:
            return torch.from_numpy(fft.idctn(x.numpy(), axes=(-2, -1), norm="ortho", overwrite_x=True))

        A, K = self.problem.forward, self.problem.differences
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, (PROBES, 1, *K.shape), generator=generator).double() * 2 - 1
        measured = (signs * transform(A.adjoint(A(back(signs.clone()))))).mean(dim=0, keepdim=True)
        smooth = avg_pool2d(pad(measured, (1, 1, 1, 1), mode="replicate"), 3, stride=1).clamp(min=0)
        values = self.v_penalty + self.z_penalty * K.eigenvalues() + 2 * self.problem.scale * smooth
        return lambda x: back(transform(x).div_(values))

    def _solve(self, right: Tensor) -> None:
        """`INNER` conjugate gradient iterations from the last x, each channel by itself."""
        residual = right - self._system(self.x)
        z = self.invert(residual)
        direction, length = z, _inner(residual, z)
        for _ in range(INNER):
            image = self._system(direction)
            t = length / _inner(direction, image)
            self.x = self.x + t * direction
            residual = residual - t * image
            z = self.invert(residual)
            before, length = length, _inner(residual, z)
            direction = z + (length / before) * direction


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of the channels `(1, C, 1, 1)`, never 0."""
    return (x * y).sum(dim=(2, 3), keepdim=True) + torch.finfo(x.dtype).tiny


class _Anderson:
    """w_{k+1} = the combination of the last steps whose residual T(w) - w would be least, were T linear."""

    def __init__(self, like: Tensor) -> None:
        channels, size = like.shape
        self.steps = like.new_zeros(channels, MEMORY, size)
        self.residuals = torch.zeros_like(self.steps)
        self.gram = like.new_zeros(channels, MEMORY, MEMORY)
        self._forget()

    def _forget(self) -> None:
        self.count = 0
        self.last: tuple[Tensor, Tensor] | None = None
        self.level = float("inf")

    def next(self, w: Tensor, moved: Tensor) -> Tensor:
        residual = moved - w
        level = float(residual.norm())
        if self.last is not None and level > 2 * self.level:  # astray: forget, and go on from the last plain step
            fallback = self.last[0]
            self._forget()
            return fallback
        if self.last is not None:
            self._remember(moved - self.last[0], residual - self.last[1])
        self.last, self.level = (moved, residual), level
        if self.count == 0:
            return moved
        used = min(self.count, MEMORY)
        gram = self.gram[:, :used, :used].clone()
        ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).sum(dim=1, keepdim=True) + torch.finfo(w.dtype).tiny
        gram.diagonal(dim1=1, dim2=2).add_(ridge)
        share = torch.linalg.solve(gram, self.residuals[:, :used] @ residual[:, :, None])
        return moved - (share.mT @ self.steps[:, :used])[:, 0]

    def _remember(self, step: Tensor, change: Tensor) -> None:
        place = self.count % MEMORY
        self.steps[:, place], self.residuals[:, place] = step, change
        self.count += 1
        products = (self.residuals @ change[:, :, None])[:, :, 0]
        self.gram[:, place, :] = self.gram[:, :, place] = products
