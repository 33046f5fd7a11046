"""Reference methods for total variation: ADMM in float64 for denoising, inpainting and reconstructions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, pad

from lmd.core.extras import require
from lmd.errors import LmdError
from lmd.guarantees.optimum import Effort, Pair
from lmd.terms.base import sum_instances

INTERVAL = 20  # iterations from one gap evaluation to the next
RELAXATION = 1.8

DENOISING_EFFORT = Effort(1e-8, 1e-6, patience=3000 // INTERVAL, evaluations=100_000 // INTERVAL)
"""300 to 1000 iterations are usual for the anisotropic form, a few thousand for the isotropic one."""

RECONSTRUCTION_EFFORT = Effort(1e-6, 1e-5, patience=1500 // INTERVAL, evaluations=20_000 // INTERVAL)
"""Isotropic problems may need the patience."""

DENOISING_NEEDS = ("differences", "noisy", "weight", "halved", "data_prox", "project_dual")
RECONSTRUCTION_NEEDS = (
    "forward", "differences", "noisy", "halved", "weight", "data_prox", "variation", "dual_from",
)  # fmt: skip
SECOND_STAGE_NEEDS = ("differences", "mask", "weight", "scale", "clip", "project_dual", "regulariser_value")

INITIAL_PULL = 1.0
"""e of the second stage to begin with, in units of s weight / range; exact below some 1.5 on photographs."""

SECOND_STAGE_EVALUATIONS = 200
SECOND_STAGE_TOLERANCE = 1e-5
"""How far, relative to the minimum, the value may be above it; the second stage goes on to a tenth of this."""

MEMORY = 20  # iterates that the acceleration uses
RIDGE = 1e-10  # regularisation of the small linear system of the acceleration
PROBES = 8  # random images that measure the spectrum of A'A for the preconditioner
CG_ITERATIONS = 2  # conjugate gradient iterations for each linear system; each starts where the last one ended


def denoising(problem: Any) -> Iterator[Pair]:
    r"""Yield points and dual points `(1, ...)` of TV denoising and inpainting.

    ADMM on min f(v) + g(z) over v = x, z = Kx, over-relaxed: the step in x is linear, (a I + r K'K) x = right-hand
    side, which the cosine transform solves; the steps in v and z are proximal. a and r are penalties; their sizes
    decide the speed, not the answer
    ([Boyd, Parikh, Chu, Peleato and Eckstein 2011](https://doi.org/10.1561/2200000016), section 3).
    """
    K, a = problem.differences, 2 * problem.scale
    spread = float(problem.noisy.max() - problem.noisy.min()) or 1.0
    # Found by trial on photographs with noise of 1 to 20% and weights of 0.04 to 2.
    r = 18 * a * (float(problem.weight) / spread) ** 0.5
    v = problem.data_prox(problem.noisy, 1 / a)
    z = K(v)
    v_dual, z_dual = torch.zeros_like(v), torch.zeros_like(z)  # scaled by 1/a and 1/r
    while True:
        for _ in range(INTERVAL):
            x = K.solve(a * (v - v_dual) + r * K.adjoint(z - z_dual), a, r)
            v_target = v_dual.add_(torch.lerp(v, x, RELAXATION))
            v = problem.data_prox(v_target, 1 / a)
            v_dual = v_target - v
            z_target = z_dual.add_(torch.lerp(z, K(x), RELAXATION))
            dual = problem.project_dual(r * z_target)
            z_dual = dual / r
            z = z_target - z_dual
        yield min((x, v), key=lambda point: float(problem.gap(point, dual))), dual


def smoothest(problem: Any, x: Tensor, bound: Tensor) -> Tensor:
    """Return the minimiser of least ||Kx||^2, from a minimiser x and a lower bound on the minimum `(1,)`."""
    for pull in (INITIAL_PULL, INITIAL_PULL / 4, INITIAL_PULL / 16):
        answer, short = second_stage(problem, x, pull)
        if short <= SECOND_STAGE_TOLERANCE and float(problem.value(answer)) <= float(bound) * (
            1 + SECOND_STAGE_TOLERANCE
        ):
            return answer
    raise LmdError(f"{type(problem).__name__}: no certified smoothest minimiser, the second stage is short {short:.1e}")


@torch.no_grad()
def second_stage(
    problem: Any, x: Tensor, pull: float = INITIAL_PULL, evaluations: int = SECOND_STAGE_EVALUATIONS
) -> tuple[Tensor, float]:
    r"""argmin h(Kz) over z with the kept pixels of x, h = g + e/2 ||.||^2, and how far it may be above that minimum.

    x `(B, ...)` is a minimiser of the problem and g its regulariser, s weight TV. g is polyhedral in the anisotropic
    form, so that for every e small enough the z of least g which is smoothest comes out, and not only as e falls to 0
    ([Friedlander and Tseng 2007](https://doi.org/10.1137/060675320)). By ADMM, as `denoising`.

    The proof: for any dual point q and any z in the box that all minimisers lie in, h(Kz) >= <K'q, z> - h*(q), where
    h*(q) is the squared distance of q to the dual points of g, over 2 e. The second number is relative to h(Kx).
    """
    K, kept = problem.differences, problem.mask.expand_as(x) > 0
    b = problem.scale * float(problem.weight.mean())
    a, e = 2 * problem.scale, pull * b / (float(x.max() - x.min()) or 1.0)
    r = 10 * a * (e / pull / problem.scale) ** 0.5  # found by trial; it decides the speed, not the answer
    low, high = (problem.clip(torch.full_like(x, end)) for end in (-torch.inf, torch.inf))
    v, z = x, K(x)
    v_dual, z_dual, short = torch.zeros_like(v), torch.zeros_like(z), float("inf")
    for k in range(evaluations * INTERVAL):
        y = K.solve(a * (v - v_dual) + r * K.adjoint(z - z_dual), a, r)
        v_target = v_dual + torch.lerp(v, y, RELAXATION)
        v = torch.where(kept, x, v_target)
        v_dual = v_target - v
        z_target = z_dual + torch.lerp(z, K(y), RELAXATION)
        z = (z_target - problem.project_dual(r * z_target) / r) * (r / (r + e))
        z_dual = z_target - z
        if k % INTERVAL == INTERVAL - 1:
            short = _short(problem, torch.where(kept, x, v.clamp(low, high)), r * z_dual, e, (low, high))
            if short <= SECOND_STAGE_TOLERANCE / 10:
                break
    return torch.where(kept, x, v.clamp(low, high)), short


def _short(problem: Any, z: Tensor, q: Tensor, e: float, box: tuple[Tensor, Tensor]) -> float:
    """How far h(Kz) is above what q proves of its minimum, over h(Kz): the largest of the batch."""
    Kz, tilt = problem.differences(z), problem.differences.adjoint(q)
    h = problem.regulariser_value(Kz) + e / 2 * sum_instances(Kz.square())
    conjugate = sum_instances((q - problem.project_dual(q)).square()) / (2 * e)
    lowest = tilt * torch.where(tilt > 0, box[0], box[1])
    at_kept = problem.mask.expand_as(z) > 0
    proven = sum_instances(torch.where(at_kept, tilt * z, lowest)) - conjugate
    return float(((h - proven) / h.clamp(min=torch.finfo(h.dtype).tiny)).max())


def reconstruction(problem: Any) -> Iterator[Pair]:
    r"""Yield points and dual points `(1, ...)` of a reconstruction from measurements.

    ADMM on min s ||Ax - y||^2 + box(v) + g(z) over v = x, z = Kx, over-relaxed, as a fixed-point iteration of
    w = (v, z) + (their scaled duals), which Anderson's method accelerates (type II, each channel by itself, since
    channels do not mix; [Walker and Ni 2011](https://doi.org/10.1137/10078356X)). The dual point: p as ADMM has it
    before it is made feasible, and q = 2s (Ax - y), for which A'q + K'p is nearly 0 where x is inside the box.
    """
    admm = _ADMM(problem)
    w = admm.join(problem.start(), problem.differences(problem.start()))
    anderson = _Anderson(w)
    while True:
        for k in range(INTERVAL):
            moved, p = admm.step(w)
            if k == INTERVAL - 1:
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
        """`CG_ITERATIONS` conjugate gradient iterations from the last x, each channel by itself."""
        residual = right - self._system(self.x)
        z = self.invert(residual)
        direction, length = z, _inner(residual, z)
        for _ in range(CG_ITERATIONS):
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
