"""Composite mirror descent: a gradient step on f and a proximal step on g, in one geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.mirrors.base import Mirror
from lmd.mirrors.entropic import Entropic
from lmd.mirrors.euclidean import Euclidean, EuclideanBox, EuclideanSimplex
from lmd.mirrors.quadratic import DiagonalQuadratic
from lmd.solvers.mirror.mirror_descent import MirrorDescent, MirrorState
from lmd.solvers.steps import Step
from lmd.terms import L1, NegativeEntropy, Term
from lmd.terms.base import per_instance

ProximalMap = Callable[[Tensor, Step], Tensor]


class ProximalMirrorDescent(MirrorDescent):
    r"""x_{k+1} = argmin_x <grad f(x_k), x> + g(x) + B(x, x_k) / t_k for a `PenalisedProblem` f + g or a `Lasso`.

    That is y_k = to_dual(x_k) - t_k grad f(x_k), then x_{k+1} = argmin_x Psi(x) - <y_k, x> + t_k g(x), for the mirrors
    and penalties of `proximal_map`. Duchi, Shalev-Shwartz, Singer and Tewari 2010, "Composite objective mirror
    descent". With the Euclidean mirror it is the proximal gradient method, with a learned `DiagonalQuadratic` and
    `L1` it is iterative shrinkage with learned weights.

    Args:
        mirror: One that `proximal_map` serves with the penalty.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    @property
    def geometry(self) -> Mirror | None:
        """None: the theorems are about steps without a prox."""
        return None

    needs = ("penalty", "misfit_gradient")

    def step(self, problem: Any, state: MirrorState) -> MirrorState:
        size = self.steps(state.iteration)
        target = self.encode(state) - size * problem.misfit_gradient(state.x)
        x = proximal_map(self.mirror, problem.penalty)(target, size)
        return MirrorState(x, state.iteration + 1)


def proximal_map(mirror: Mirror, penalty: Term) -> ProximalMap:
    """Return the function from (y, t) to argmin_x Psi(x) - <y, x> + t g(x), where that has a closed form.

    Args:
        mirror: `Euclidean`, `EuclideanBox`, `EuclideanSimplex`, `DiagonalQuadratic` or `Entropic`.
        penalty: g: `L1`, or with `Entropic` also `NegativeEntropy`.
    """
    for mirrors, penalties, make in CLOSED_FORMS:
        if type(mirror) in mirrors and type(penalty) in penalties:
            return make(mirror, penalty)
    known = "; ".join(
        f"{' or '.join(m.__name__ for m in mirrors)} with {' or '.join(p.__name__ for p in penalties)}"
        for mirrors, penalties, _ in CLOSED_FORMS
    )
    raise InputError("penalty", f"{type(penalty).__name__} with the mirror {type(mirror).__name__}", known)


def _shrink_and_map(mirror: Mirror, penalty: Any) -> ProximalMap:
    """Separable potentials: entry by entry a convex function, whose minimiser on an interval is the clipped one."""
    weight = penalty.weight
    return lambda y, t: mirror.to_primal(y.sign() * (y.abs() - t * per_instance(weight, y)).clamp(min=0))


def _map_alone(mirror: Mirror, penalty: Any) -> ProximalMap:
    """On the simplex the l1 norm is 1 everywhere."""
    return lambda y, t: mirror.to_primal(y)


def _temper(mirror: Mirror, penalty: Any) -> ProximalMap:
    """Psi + t g is (1 + t weight) Psi."""
    return lambda y, t: mirror.to_primal(y / (1 + torch.as_tensor(t, dtype=y.dtype, device=y.device) * penalty.weight))


CLOSED_FORMS: tuple[tuple[tuple[type[Mirror], ...], tuple[type[Term], ...], Callable[[Mirror, Any], ProximalMap]], ...]
CLOSED_FORMS = (
    ((Euclidean, EuclideanBox, DiagonalQuadratic), (L1,), _shrink_and_map),
    ((Entropic, EuclideanSimplex), (L1,), _map_alone),
    ((Entropic,), (NegativeEntropy,), _temper),
)
"""Mirrors and penalties that `proximal_map` serves."""
