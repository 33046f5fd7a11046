"""Quadratic programs over a box, the simplex or linear inequalities; families of control and portfolio problems."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lmd.core.checks import check_batch, check_count, check_positive, shape_of
from lmd.errors import InputError
from lmd.operators import Identity, LinearOperator
from lmd.operators.matrix import Matrix
from lmd.problems.base import Family, Problem, joined
from lmd.problems.composite import Composite
from lmd.terms import Box, Quadratic, Simplex, Term

Bound = float | Tensor
"""A number, one per entry `(n,)`, or one per instance and entry `(B, n)`; infinite where there is none."""


class QuadraticProgram(Composite):
    r"""min x'Px / 2 + q'x + r over low <= x <= high and l <= Ax <= u; x, q `(B, n)`.

    P `(n, n)` is positive definite and A `(m, n)`, for all instances, or there is one for each: `(B, n, n)`,
    `(B, m, n)`. Bounds are numbers, one per entry, or one per instance and entry, and may be infinite. Any dual point
    gives a bound on the minimum: with p of the box and y of the inequalities it is
    r - (q + p + A'y)'P^{-1}(q + p + A'y) / 2 minus the largest <x, p> and <z, y> over both boxes
    ([Boyd and Vandenberghe 2004](https://web.stanford.edu/~boyd/cvxbook/), section 5.2).

    Args:
        P: `(n, n)` or `(B, n, n)`, symmetric and positive definite.
        q: `(B, n)`.
        low, high: Bounds of x: a number, `(n,)` or `(B, n)`.
        A: `(m, n)` or `(B, m, n)`; None where the box is all.
        l, u: Bounds of Ax: a number, `(m,)` or `(B, m)`.
        r: What is added to all values: a number, or one per instance `(B,)`. Tolerances are relative to values.

    >>> import lmd
    >>> problem = QuadraticProgram(torch.eye(2), torch.tensor([[-3.0, 0.5]]), low=0.0, high=1.0)
    >>> result = lmd.solve(problem, tolerance=1e-6)
    >>> result.x.round(decimals=3), bool(result.certificate.bound < 1e-5)
    (tensor([[1., 0.]]), True)
    """

    def __init__(
        self,
        P: Tensor,
        q: Tensor,
        low: Bound = -math.inf,
        high: Bound = math.inf,
        A: Tensor | None = None,
        l: Bound = -math.inf,  # noqa: E741  (what the literature calls it)
        u: Bound = math.inf,
        r: float | Tensor = 0.0,
    ) -> None:
        q, given = check_batch("q", q), (low, high, l, u)
        low, high = (_entries(name, bound, q, q.shape[1]) for name, bound in (("low", low), ("high", high)))
        behind: list[tuple[Term, LinearOperator]] = []
        if A is None or bool((low > -math.inf).any() or (high < math.inf).any()):
            behind.append((Box(low, high), Identity()))
        if A is not None:
            ends = (_entries(name, bound, q, A.shape[-2]) for name, bound in (("l", l), ("u", u)))
            behind.append((Box(*ends), Matrix(A)))
        self.bounds_vary = any(isinstance(bound, Tensor) and bound.ndim == 2 for bound in given)
        start = torch.minimum(torch.maximum(torch.zeros_like(q), low), high)
        super().__init__(Quadratic(P, q, r), *behind, start=start)

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The ends of x, where there are any, and of Ax `(B, m)`."""
        low, high = (torch.cat([getattr(term, end) for term in self.regularisers], dim=1) for end in ("low", "high"))
        return low, high

    def data_vector(self) -> Tensor:
        """q, and what else each instance has of its own: 0 for a bound that is infinite."""
        if not self.bounds_vary:
            return joined(self.f.data(), type(self).__name__)
        data = super().data_vector()
        return torch.where(data.isfinite(), data, 0)


def _entries(name: str, bound: Bound, q: Tensor, size: int) -> Tensor:
    """A bound for each entry of each instance `(B, size)`, as a view."""
    given = torch.as_tensor(bound, dtype=q.dtype, device=q.device)
    if given.shape not in ((), (size,), (len(q), size)):
        raise InputError(name, f"shape {shape_of(given)}", f"a number, ({size},) or ({len(q)}, {size})")
    return given.expand(len(q), size)


class ControlFamily(Family):
    r"""Receding-horizon control: the inputs over the next steps, for states that change; [Rawlings, Mayne and Diehl
    2017](https://sites.engineering.ucsb.edu/~jbraw/mpc/), section 2.

    s_{t+1} = F s_t + G v_t for `horizon` steps, inputs v_t between -limit and limit, cost \sum s'Qs + v'Rv / 2: with
    the states eliminated a box-constrained program in the inputs, whose P is shared and whose q is linear in s_0.
    F, G `(states, states)`, `(states, inputs)` are drawn once, a little unstable, so that P is badly conditioned.

    Args:
        states: Entries of a state.
        inputs: Entries of an input.
        horizon: Steps that are looked ahead; a problem has horizon * inputs variables.
        limit: The largest size of an entry of an input, positive.
        effort: R is this times the identity; Q is the identity.
        seed: What F and G are drawn from.
    """

    name = "control"

    def __init__(
        self,
        states: int = 4,
        inputs: int = 2,
        horizon: int = 24,
        limit: float = 0.5,
        effort: float = 1e-2,
        seed: int = 0,
    ) -> None:
        check_count("states", states), check_count("inputs", inputs), check_count("horizon", horizon)
        self.limit = check_positive("limit", limit)
        generator, kind = torch.Generator().manual_seed(seed), torch.float64
        F = torch.randn(states, states, generator=generator, dtype=kind, device="cpu")
        F = 1.05 * F / torch.linalg.eigvals(F).abs().max()
        G = torch.randn(states, inputs, generator=generator, dtype=kind, device="cpu")
        powers = [torch.eye(states, dtype=kind, device="cpu")]
        for _ in range(horizon):
            powers.append(F @ powers[-1])
        nothing = torch.zeros(states, inputs, dtype=kind, device="cpu")
        moved = [[powers[t - s] @ G if s <= t else nothing for s in range(horizon)] for t in range(horizon)]
        response = torch.cat([torch.cat(row, dim=1) for row in moved])
        free = torch.cat(powers[1:])
        P = response.mT @ response + effort * torch.eye(horizon * inputs, dtype=kind, device="cpu")
        self.P, self.from_state = ((P + P.mT) / 2).float(), (free.mT @ response).float()

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        state = torch.randn(
            batch, len(self.from_state), generator=generator, device=generator.device, dtype=torch.float32
        )
        device = generator.device
        q = state @ self.from_state.to(device)
        problem = QuadraticProgram(self.P.to(device), q, -self.limit, self.limit)
        return problem, problem.start()


class PortfolioFamily(Family):
    r"""Markowitz portfolios on the simplex: risk x'Cx / 2 minus `appetite` times the expected return, which changes.

    C is a covariance of a few common factors and noise of each asset's own, shared by all instances
    ([Markowitz 1952](https://doi.org/10.1111/j.1540-6261.1952.tb01525.x)).

    Args:
        assets: Entries of x.
        factors: Common factors of the covariance.
        appetite: What the expected return counts for beside the risk, positive.
        seed: What C is drawn from.
    """

    name = "portfolio"

    def __init__(self, assets: int = 50, factors: int = 5, appetite: float = 1.0, seed: int = 0) -> None:
        check_count("assets", assets), check_count("factors", factors)
        self.appetite = check_positive("appetite", appetite)
        generator = torch.Generator().manual_seed(seed)
        loads = torch.randn(assets, factors, generator=generator, dtype=torch.float64, device="cpu")
        own = 0.1 + torch.rand(assets, generator=generator, dtype=torch.float64, device="cpu")
        self.P = (loads @ loads.mT + torch.diag(own)).float()

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        device, assets = generator.device, len(self.P)
        returns = torch.randn(batch, assets, generator=generator, device=device, dtype=torch.float32)
        start = torch.full_like(returns, 1 / assets)
        f = Quadratic(self.P.to(device), -self.appetite * returns)
        return Composite(f, (Simplex(), Identity()), start=start), start
