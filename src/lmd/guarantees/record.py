"""What the theorems use of a run: values, steps, subgradient norms, dual residuals, and their rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import Solver
from lmd.solvers.result import Constant, Result
from lmd.solvers.tracking import take
from lmd.terms.domains import same_set

ROUNDING = 64  # units of rounding to which a value is taken to be right; certificates leave room for them


@dataclass(frozen=True)
class Record:
    """A finished or running solve, in float64.

    What is proven at the answer is evaluated in float64, where the problem has such a form (`exact`); what is proven
    from the history leaves room for the rounding of the run, `epsilon`.
    """

    units: ClassVar[float] = ROUNDING

    solver: Solver[Any]
    problem: Problem

    start: Tensor  # x_0 `(B, ...)`
    x: Tensor  # the points `(B, ...)` to certify
    reported: Tensor  # f(x) `(B,)` as the run has it
    values: Tensor  # f(x_k) `(K+1, B)` for k = 0, ..., K, or less: a wrapper may report a lower value than its solver's
    diagnostics: Mapping[str, Tensor]  # diagnostics of the solver at x_k `(K+1, B)`
    dual: Tensor | None = None  # a dual point for each instance

    @classmethod
    def of(cls, result: Result) -> Record:
        """Return the record of a finished run."""
        history = result.history
        return cls(
            result.solver,
            result.problem,
            result.start,
            result.x,
            result.values.double(),
            history.values.double(),
            {name: numbers.double() for name, numbers in history.diagnostics.items()},
            result.dual,
        )

    @property
    def mirror(self) -> Mirror | None:
        """The mirror, where the run was mirror descent, lazy or not, on the domain that the problem has."""
        mirror = self.solver.geometry
        recorded = "step_size" in self.diagnostics  # not in a run of no iterations
        return mirror if mirror is not None and recorded and same_set(mirror.domain, self.problem.domain) else None

    @property
    def steps(self) -> Tensor:
        """t_k `(K, B)`; NaN where the instance had stopped."""
        return self.diagnostics["step_size"][:-1]

    @property
    def subgradient_norms(self) -> Tensor:
        """||g_k||_* `(K, B)`, in the dual of the mirror's norm, or more: with room for the rounding of g_k."""
        return self.diagnostics["subgradient_norm"][:-1] + self._gradient_rounding

    @property
    def residuals(self) -> Tensor:
        """||e_{k+1}||_* `(K, B)` with e_{k+1} = to_dual(x_{k+1}) - (to_dual(x_k) - t_k g_k); NaN where it is unknown.

        0 for an exact mirror, unless it clipped: then the residual is unknown.
        """
        clipped = self.diagnostics.get("clipped", torch.zeros_like(self.values))[:-1]
        if self.mirror is not None and self.mirror.is_exact:
            return torch.zeros_like(clipped).masked_fill_(clipped != 0, torch.nan)
        return self.diagnostics.get("dual_residual", torch.full_like(self.values, torch.nan))[1:]

    @property
    def relative_smoothness(self) -> Tensor | None:
        """L_k `(K, B)` for which backtracking saw relative smoothness hold in step k; NaN where it did not."""
        seen = self.diagnostics.get("relative_smoothness")
        return None if seen is None else seen[:-1]

    @cached_property
    def exact(self) -> Problem:
        """The problem in float64, where it has such a form."""
        exact = self.problem.double()
        return self.problem if exact is None else exact

    @cached_property
    def answer(self) -> Tensor:
        """x in the dtype of `exact`."""
        return self.x if self.exact is self.problem else self.x.double()

    @cached_property
    def exact_value(self) -> Tensor:
        """f(x) `(B,)`."""
        with torch.no_grad():
            return self.exact.value(self.answer).double()

    @cached_property
    def value(self) -> Tensor:
        """f(x) `(B,)`, or the reported value where rounding made that larger: a bound has to hold for both."""
        return torch.fmax(self.exact_value, self.reported)

    @property
    def epsilon(self) -> float:
        """The rounding of the run's numbers."""
        return torch.finfo(self.start.dtype).eps

    @property
    def answer_epsilon(self) -> float:
        """The rounding with which `exact` is evaluated."""
        return torch.finfo(self.answer.dtype).eps

    @property
    def dimension(self) -> int:
        """n, the number of variables of an instance."""
        return self.start[0].numel()

    def strong_convexity(self, norm: str) -> Constant | None:
        """mu of f in a norm; ||v||_2^2 is at least ||v||_1^2 / n and at least ||v||_inf^2."""
        factor = 1 / self.dimension if norm == "l1" else 1.0
        return self._constant(self._strong_convexity, factor, "the problem's strong convexity", norm)

    def smoothness(self, norm: str) -> Constant | None:
        """L of f in a norm; ||v||_2^2 is at most ||v||_1^2 and at most n ||v||_inf^2."""
        factor = float(self.dimension) if norm == "linf" else 1.0
        return self._constant(self._smoothness, factor, "the problem's smoothness", norm)

    @cached_property
    def _strong_convexity(self) -> Tensor | None:
        """The problem's, less the rounding of the smallest eigenvalue of a matrix."""
        mu = self.exact.strong_convexity
        if mu is None or self._smoothness is None:
            return mu
        return (mu - self.dimension * self.answer_epsilon * self._smoothness).clamp(min=0)

    @cached_property
    def _smoothness(self) -> Tensor | None:
        return self.exact.smoothness

    def rounding(self, size: Tensor) -> Tensor:
        """Return the room that a certificate leaves for the rounding of numbers of this size from the history."""
        return self._room(self.epsilon, size)

    def answer_rounding(self, size: Tensor) -> Tensor:
        """Return the same for numbers that were evaluated at the answer."""
        return self._room(self.answer_epsilon, size)

    def step_rounding(self, steps: Tensor) -> Tensor:
        """Return how far `to_dual(x_{k+1})` may be from to_dual(x_k) - t_k g_k by rounding, in the dual norm `(K, B)`.

        So many units of the dual point and of t_k g_k, where g_k is that of a point off by as many; `steps` are t_k.
        """
        size = self._dual_size + steps * self.subgradient_norms[: len(steps)]
        return self.units * self.epsilon * size + steps * self._gradient_rounding

    @cached_property
    def divergence_rounding(self) -> Tensor:
        """How far a divergence B(x_{k+1}, x_k) of the run may be off `(B,)`, as potentials cancel in its definition.

        0 where the mirror has its own form.
        """
        mirror = self.solver.geometry
        if mirror is None or type(mirror).divergence is not Mirror.divergence:
            return torch.zeros_like(self.value)
        with torch.no_grad():
            ends = [mirror.potential(x).abs().double() + self._dual_size * norm_of(x, mirror.norm) for x in self._ends]
        return self.units * self.epsilon * (ends[0] + ends[1])

    @cached_property
    def _dual_size(self) -> Tensor:
        """The larger ||to_dual(x)||_* of the start and of the answer `(B,)`."""
        mirror = self.solver.geometry
        assert mirror is not None
        with torch.no_grad():
            sizes = [norm_of(mirror.to_dual(x), DUAL_NORM[mirror.norm]).double() for x in self._ends]
        return torch.maximum(*sizes)

    @property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """The start, and the answer where that is finite."""
        return self.start, take(torch.isfinite(self.x.flatten(1)).all(dim=1), self.x, self.start)

    @cached_property
    def _curvature(self) -> Tensor:
        """L of f `(B,)` or `()`, or mu where only that is known, or 0."""
        curvature = self._strong_convexity if self._smoothness is None else self._smoothness
        return torch.zeros_like(self.value) if curvature is None else curvature.double()

    @cached_property
    def _length(self) -> Tensor:
        """The larger ||x|| of the start and of the answer `(B,)`."""
        return torch.maximum(norm_of(self.x, "l2"), norm_of(self.start, "l2")).double()

    @property
    def _gradient_rounding(self) -> Tensor:
        """How far a subgradient of the history is off `(B,)`: it is that of a point off by so many units."""
        return self.units * self.epsilon * self._curvature * self._length

    def _room(self, epsilon: float, size: Tensor) -> Tensor:
        """Values are those of points off by so many units: so they differ by sqrt(2 L f) times that, and a square."""
        noise = self._curvature * (self.units * epsilon * self._length).square()
        return self.units * epsilon * size + 2 * (size * noise).sqrt() + noise

    def _constant(self, value: Tensor | None, factor: float, origin: str, norm: str) -> Constant | None:
        if value is None or not bool((value > 0).any()):
            return None
        scaled = "" if factor == 1 else f", from l2 to {norm}"
        return Constant(factor * value.double(), origin + scaled)
