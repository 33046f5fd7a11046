"""ADMM with Fourier transforms: squares behind blurs or projections, a term behind differences, a domain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.core.checks import check_positive
from lmd.errors import CapabilityError, InputError
from lmd.problems.grids import is_circulant
from lmd.solvers.base import DualState, Solver
from lmd.solvers.classical.pdhg import check_step
from lmd.terms.base import per_instance

DOMAIN_PENALTY = 0.01  # e, in units of the smoothness of the misfit


@dataclass(frozen=True, kw_only=True)
class CirculantState(DualState):
    """The answer z as `x`, and the variables of the formulas; Fourier coefficients have H, W // 2 + 1 for H, W."""

    quadratic: Tensor  # x of the quadratic step `(B, C, H, W)`, which may be outside of the domain
    coefficients: Tensor  # the Fourier coefficients of it
    differences: Tensor  # Kx of it `(B, C, 2, H, W)`
    w: Tensor
    p: Tensor
    q: Tensor
    data: Tensor  # the coefficients of H x - grad h(x), which are the same for all x where H is the Hessian
    hessian: Tensor  # H, in Fourier coefficients
    metric: Tensor  # M `(B, 1, ...)`, the same
    e: Tensor  # `()`
    rho: Tensor  # `(B,)`


class CirculantADMM(Solver[CirculantState]):
    r"""Alternating directions for f(z) + h(x) + g(w) with z = x, w = Kx: the quadratic step in Fourier coefficients.

        x_{k+1} = x_k - M^{-1} (grad h(x_k) + K'(p_k + rho (K x_k - w_k)) + q_k + e (x_k - z_k))
        p_{k+1} = prox_{rho g*}(p_k + rho v),  w_{k+1} = v + (p_k - p_{k+1}) / rho,    v = r K x_{k+1} + (1 - r) w_k
        z_{k+1} = prox_{f / e}(v + q_k / e),   q_{k+1} = q_k + e (v - z_{k+1}),        v = r x_{k+1} + (1 - r) z_k

    f has a prox, h is quadratic and K takes differences. M = H + rho L + e with circulant matrices H and L, diagonal in
    Fourier coefficients, that are at least the Hessian of h and K'K: for squares behind a circular blur H is the
    Hessian, and the step is exact but for the border of K; behind projections it is near. Alternating directions with
    a proximal term and relaxation r converge for every rho, e > 0 and 0 < r < 2
    ([Fang, He, Liu and Yuan 2015](https://doi.org/10.1007/s12532-015-0078-2)). z is the answer; its dual point is p,
    and grad h(x) beside it.

    An iteration costs two transforms, whatever the blur, and a gradient of h where H is not its Hessian.

    Args:
        threshold: b / rho in units of the range of x, b the size of an entry of p: differences below it are flattened
            by one step. Positive.
        relaxation: r, between 0 and 2.
    """

    needs = ("differences", "beside_spectrum", "data_prox")
    stays_in_domain = True  # the answer is a prox of f
    ends_proven = True
    init_cost: ClassVar = {"operator": 1, "data_gradient": 1, "dual_from": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "data_prox": 1, "dual_from": 1}

    def __init__(self, threshold: float = 0.12, relaxation: float = 1.8) -> None:
        super().__init__()
        self.threshold, self.relaxation = check_step("threshold", threshold), check_positive("relaxation", relaxation)
        if self.relaxation >= 2:
            raise InputError("relaxation", relaxation, "a number between 0 and 2")

    def init(self, problem: Any, x0: Tensor) -> CirculantState:
        hessian, laplacian = problem.beside_spectrum, problem.differences.wrapped_spectrum
        if hessian is None or laplacian is None or x0.shape[-2:] != problem.differences.grid:
            raise CapabilityError(
                "problem", "one without a circulant bound", "squares behind circular blurs or projections of images"
            )
        hessian, differences, unit = hessian.to(x0), problem.differences(x0), problem.step_scale(x0)
        rho = torch.where(torch.isfinite(unit), 1 / (self.threshold * unit), 1.0)
        e, p, coefficients = DOMAIN_PENALTY * hessian.max(), torch.zeros_like(differences), torch.fft.rfft2(x0)
        return CirculantState(
            x0,
            dual=problem.dual_from(p, x0),
            quadratic=x0,
            coefficients=coefficients,
            differences=differences,
            w=differences,
            p=p,
            q=torch.zeros_like(x0),
            data=hessian * coefficients - torch.fft.rfft2(problem.data_gradient(x0)),
            hessian=hessian,
            metric=hessian + per_instance(rho, x0) * laplacian.to(x0) + e,
            e=e,
            rho=rho,
        )

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> CirculantState:
        """With p, and q such that the gradients add up to 0."""
        state, p = self.init(problem, x), problem.differences_part(dual)
        q = -problem.data_gradient(x) - problem.differences.adjoint(p)
        return replace(state, dual=dual, p=p, q=q)

    def step(self, problem: Any, state: CirculantState) -> CirculantState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Any, state: CirculantState, count: int) -> CirculantState:
        """The dual point of the smooth terms is computed at the end alone."""
        x, hat, rise, e = state.quadratic, state.coefficients, state.differences, state.e
        z, w, p, q = state.x, state.w, state.p, state.q
        r, size, rho = self.relaxation, x.shape[-2:], per_instance(state.rho, w)
        circulant = is_circulant(problem.beside)
        for _ in range(count):
            slope = problem.differences.adjoint(p + rho * (rise - w)) + q + e * (x - z)
            if circulant:
                slope_hat = torch.fft.rfft2(slope) + state.hessian * hat - state.data
            else:
                slope_hat = torch.fft.rfft2(slope + problem.data_gradient(x))
            hat = hat - slope_hat / state.metric
            x = torch.fft.irfft2(hat, s=size)
            rise = problem.differences(x)
            ahead, v = torch.lerp(w, rise, r), torch.lerp(z, x, r)
            new = problem.variation.conjugate_prox(p + rho * ahead, state.rho)
            w, p = ahead + (p - new) / rho, new
            z = problem.data_prox(v + q / e, 1 / e)
            q = q + e * (v - z)
        return replace(
            state,
            x=z,
            iteration=state.iteration + count,
            evaluations={} if circulant else {"data_gradient": torch.full_like(state.rho, count)},
            dual=problem.dual_from(p, x),
            quadratic=x,
            coefficients=hat,
            differences=rise,
            w=w,
            p=p,
            q=q,
        )
