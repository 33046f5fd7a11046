"""ADMM with fixed or learned penalties and relaxations, and ADMM with Fourier transforms."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive
from lmd.errors import CapabilityError, InputError
from lmd.solvers.base import DualState, Solver
from lmd.terms.base import Scale, add_scaled, per_instance
from lmd.terms.quadratic import times

MAX_SIZE = 2048  # largest number of entries n of x, because `(n, n)` matrices are inverted
MAX_TUNED_BLOCKS = 4  # with more blocks, their penalties are tuned together
TINY_STEP = 1e-12  # a step so short that a prox only projects onto the domain of its term

# For `CirculantADMM`: b / rho in units of the range of x, with b the size of an entry of p. One step flattens
# differences below b / rho
THRESHOLD = 0.12
RELAXATION = 1.8  # r
DOMAIN_PENALTY = 0.01  # e, in units of the smoothness of the misfit

# r, 1 / r, s and a of one iteration, each a number or `(B,)`; r may also be `(1, m)`, one number per entry of Kx
Parameters = tuple[Scale, ...]


@dataclass(frozen=True, kw_only=True)
class ADMMState(DualState):
    """The copies u of x and z of Kx at which f and g are evaluated; `dual` is the multiplier y of z = Kx."""

    z: Tensor  # in the shape of Kx
    u: Tensor  # the copy of x; unused if f is a quadratic form
    v: Tensor  # the multiplier of u = x, or q if f is a quadratic form
    inverses: Tensor  # inverted matrices of the linear systems of N phases: `(N, n, n)` or `(N, B, n, n)`
    schedule: tuple[Parameters, ...]  # the parameters of the N phases


class ADMM(Solver[ADMMState]):
    r"""ADMM for f(u) + g(z) subject to u = x, z = Kx: x solves a linear system, u and z are proxes of f and g.

        x_{k+1} = (r K'K + s)^{-1} (K'(r z_k - y_k) + s u_k - v_k)
        z_{k+1} = prox_{g/r}(z~ + y_k / r),  y_{k+1} = y_k + r (z~ - z_{k+1}),  z~ = a K x_{k+1} + (1 - a) z_k

    and u, v are updated with f and s in the same way. If f is a quadratic form x'Px / 2 + q'x, P replaces s, and -q
    replaces s u - v. The penalties r and s are multiples of the problem's own scale. They and the relaxation a are
    learned for each phase of the iterations (`ends`). The last phase never ends, so the method converges from any
    point, for all penalties and 0 < a < 2 ([Eckstein and Bertsekas 1992](https://doi.org/10.1007/BF01581204)). y is a
    dual point and certifies x. With `blocks`, each block of Kx has its own r: then r is a diagonal matrix, and K'rK
    replaces r K'K. This requires instances that share their matrices.

    If instances share P and K, the inverted matrices are cached for the next problems. If K is the identity and f a
    quadratic form, the answer is z, at which g is finite; if f is no quadratic form, it is u, at which f is finite.

    Args:
        ends: Ascending iterations at which the phases before the last one end; () is the classical method.
        penalty: Initial r and s of each phase, as multiples of the problem's own scale.
        relaxation: Initial a of each phase, between 0 and 2.
        blocks: Number of entries of each block of Kx with its own r; () is one r for all entries.

    >>> import lmd
    >>> problem, x0 = lmd.problems.ControlFamily().sample(5, torch.Generator().manual_seed(0))
    >>> lmd.solve(problem, 1e-4, solver=ADMM()).status[0].name
    'TOLERANCE_REACHED'
    """

    needs = ("operator", "f", "g")
    stays_in_domain = True  # as far as PDHG does
    ends_proven = True
    init_cost: ClassVar = {"operator": 1, "adjoint": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1}

    def __init__(
        self,
        ends: Sequence[int] = (),
        penalty: float = 1.0,
        relaxation: float = 1.6,
        blocks: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.blocks = [check_count("blocks", n) for n in blocks]
        self.ends = [check_count("ends", n) for n in ends]
        if sorted(set(self.ends)) != self.ends:
            raise InputError("ends", self.ends, "ascending numbers")
        self.iterations = iterations = len(self.ends) + 1  # rows of parameters, N
        if not 0 < relaxation < 2:
            raise InputError("relaxation", relaxation, "a number between 0 and 2")
        self.penalty, self.relaxation = check_positive("penalty", penalty), float(relaxation)
        columns = max(1, len(self.blocks)) + 1
        # log r_k of each block and log s_k, relative to the problem's scales `(N, J + 1)`
        self.penalties = nn.Parameter(torch.full((iterations, columns), math.log(self.penalty)))
        # a_k / 2 as logits `(N,)`
        self.relaxations = nn.Parameter(torch.full((iterations,), math.log(relaxation / (2 - relaxation))))
        self._cached: tuple[list[Tensor], Any] = [], None  # tensors, and what `_matrices` computed from them

    @property
    def horizon(self) -> int | None:
        """The iterations before the last phase."""
        return self.ends[-1] if self.ends else None

    def init(self, problem: Any, x0: Tensor) -> ADMMState:
        """Start at y = 0, or at y = r (x0 - its projection onto dom g) if K is the identity and f a quadratic form."""
        return self.resume(problem, x0)

    def resume(self, problem: Any, x: Tensor, dual: Tensor | None = None) -> ADMMState:
        inverses, schedule = self._matrices(problem, x)
        form, operator = problem.f.quadratic, problem.operator
        if form is not None and operator.is_identity:  # z is the projection of x onto the domain of g
            z = problem.g.prox(x, TINY_STEP)
            outside, x = x - z, z
            dual = per_instance(schedule[0][0], z) * outside if dual is None else dual
        else:
            z = operator(x)
            dual = torch.zeros_like(z) if dual is None else dual
        v = -operator.adjoint(dual) if form is None else form[1]
        return ADMMState(x, dual=dual, z=z, u=x, v=v, inverses=inverses, schedule=schedule)

    def _matrices(self, problem: Any, x: Tensor) -> tuple[Tensor, tuple[Parameters, ...]]:
        """Return the inverted matrices and the schedule, cached for other problems with the same P and K."""
        trained = torch.is_grad_enabled() and self.penalties.requires_grad

        def compute() -> tuple[Tensor, tuple[Parameters, ...]]:
            schedule = self._schedule(_scales(problem, x), trained)
            return self._invert(problem, x, schedule), schedule

        shared = None if trained else _shared_matrices(problem, x)
        if shared is None:
            return compute()
        tensors = [*shared, self.penalties, self.relaxations]
        pairs = list(zip(tensors, self._cached[0], strict=False))  # none before anything is cached
        if not pairs or not all(a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in pairs):
            with torch.inference_mode(False), torch.no_grad():
                self._cached = [each.detach().clone() for each in tensors], compute()
        return self._cached[1]

    def search_directions(self) -> Tensor:
        """Return the directions `(D, J + 2)` in which the parameters of an iteration are searched.

        They change log r (per block if there are few blocks), log s and the logit of a.
        """
        unit = torch.eye(self.penalties.shape[1] + 1, dtype=self.penalties.dtype, device=self.penalties.device)
        r = unit[:-2] if len(self.blocks) <= MAX_TUNED_BLOCKS else unit[:-2].sum(dim=0, keepdim=True)
        return torch.cat([r, unit[-2:]])

    @torch.no_grad()
    def move_(self, row: int, change: Tensor) -> None:
        """Change one of the N rows of parameters by `change` `(J + 2,)`."""
        self.penalties[row] += change[:-1].to(self.penalties)
        self.relaxations[row] += change[-1].to(self.relaxations)

    def _schedule(self, scales: Tensor, trained: bool) -> tuple[Parameters, ...]:
        """Return the parameters of all phases; shared ones become plain numbers, which makes steps faster."""
        multiples, scales = self.penalties.to(scales.dtype).exp(), scales.reshape(2, -1)
        r = multiples[:, :1] * scales[0]
        if self.blocks:
            sizes = torch.tensor(self.blocks, dtype=torch.int64, device=scales.device)
            r = (multiples[:, :-1] * scales[0]).repeat_interleave(sizes, dim=1)[:, None]
        s = multiples[:, -1:] * scales[1]
        a = (2 * self.relaxations.to(scales.dtype).sigmoid())[:, None].expand_as(s)
        rows = zip(r, 1 / r, s, a, strict=True)
        return tuple(tuple(each if trained or each.numel() > 1 else float(each) for each in row) for row in rows)

    def _invert(self, problem: Any, x: Tensor, schedule: tuple[Parameters, ...]) -> Tensor:
        """Return (P + K'rK)^{-1}, or (s + K'rK)^{-1} without P, for each phase; inverted in float64."""
        exact: Any = {"dtype": torch.float64, "device": x.device}
        r, s = (torch.stack([torch.as_tensor(each[i], **exact) for each in schedule]) for i in (0, 2))
        form, operator, size = problem.f.quadratic, problem.operator, x[0].numel()
        identity = torch.eye(size, dtype=torch.float64, device=x.device)
        if self.blocks:
            K = operator(identity.to(x.dtype).reshape(size, *x.shape[1:])).flatten(1).double().mT
            gram = (K.mT @ (r.mT * K))[:, None]
        else:
            gram = r[..., None, None] * operator.gram(x).double()
        first = s[..., None, None] * identity if form is None else form[0].double()
        inverses = torch.linalg.inv(gram + first).to(x.dtype)
        return (inverses[:, 0] if inverses.shape[1] == 1 else inverses).contiguous()

    def step(self, problem: Any, state: ADMMState) -> ADMMState:
        k, z, y = bisect.bisect_right(self.ends, state.iteration), state.z, state.dual
        (r, short, s, a), inverse, operator = state.schedule[k], state.inverses[k], problem.operator
        split, u, v = problem.f.quadratic is None, state.u, state.v
        back = add_scaled(-y, r, z)
        right = (back if operator.is_identity else operator.adjoint(back)) - v
        right = add_scaled(right, s, u) if split else right
        x = times(right.flatten(1), inverse).reshape_as(right)
        image = torch.lerp(z, x if operator.is_identity else operator(x), per_instance(a, z))
        z = problem.g.prox(add_scaled(image, short, y), short)
        y = add_scaled(y, r, image - z)
        if split:
            relaxed = torch.lerp(u, x, per_instance(a, x))
            u = problem.f.prox(add_scaled(relaxed, 1 / s, v), 1 / s)
            v = add_scaled(v, s, relaxed - u)
        answer = u if split else z if operator.is_identity else x
        return replace(state, x=answer, iteration=state.iteration + 1, dual=y, z=z, u=u, v=v)


def _shared_matrices(problem: Any, x: Tensor) -> list[Tensor] | None:
    """Return K'Kc for one vector c, and P or the smoothness of f; None if instances have different matrices.

    The cache recognises matrices by these tensors: operators K with the same K'Kc are assumed to be equal.
    """
    quadratic, operator = problem.f.quadratic, problem.operator
    if operator.select(0) is not operator or (quadratic is not None and quadratic[0].ndim == 3):
        return None
    image = torch.linspace(1, 2, x[0].numel(), dtype=x.dtype, device=x.device).reshape(1, *x.shape[1:])
    if not operator.is_identity:
        image = operator.adjoint(operator(image))
    return [image, _mean_smoothness(problem, x) if quadratic is None else quadratic[0]]


def _mean_smoothness(problem: Any, x: Tensor) -> Tensor:
    return torch.as_tensor(problem.data_smoothness, dtype=torch.float64, device=x.device).mean()


def _scales(problem: Any, x: Tensor) -> Tensor:
    """Return the scales of r and s `(2,)`, or `(2, B)`.

    With P, the scale of r balances the ends of the spectrum of P^{-1}K'K ([Ghadimi, Teixeira, Shames and Johansson
    2015](https://doi.org/10.1109/TAC.2014.2354892)). Without P, the scale of s is f's smoothness. Computed in float64.
    """
    if x[0].numel() > MAX_SIZE:
        accepted = f"at most {MAX_SIZE}, as a matrix of them is inverted; take PDHG for more"
        raise InputError("problem", f"{x[0].numel()} entries", accepted)
    gram = problem.operator.gram(x).double()
    if problem.f.quadratic is None:
        s = _mean_smoothness(problem, x)
        r = s / torch.linalg.eigvalsh(gram)[..., -1]
    else:
        root = torch.linalg.cholesky(problem.f.quadratic[0].double())
        half = torch.linalg.solve_triangular(root, gram, upper=False)
        spectrum = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root, half.mT, upper=False))
        most = spectrum[..., -1]
        r = 1 / (torch.where(spectrum > 1e-6 * most[..., None], spectrum, torch.inf).amin(dim=-1) * most).sqrt()
        s = torch.ones_like(r)
    return torch.stack([r, s.expand_as(r)]).to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class CirculantState(DualState):
    """The answer z as `x`, and the variables of the formulas; Fourier coefficients have the size (H, W // 2 + 1)."""

    quadratic: Tensor  # x of the quadratic step `(B, C, H, W)`; may lie outside of the domain
    w: Tensor
    p: Tensor
    q: Tensor
    data: Tensor  # Fourier coefficients of H x - grad h(x), which are the same for all x
    hessian: Tensor  # H, in Fourier coefficients
    metric: Tensor  # M `(B, 1, ...)`, in Fourier coefficients
    e: Tensor  # `()`
    rho: Tensor  # `(B,)`


class CirculantADMM(Solver[CirculantState]):
    r"""ADMM for f(z) + h(x) + g(w) with z = x, w = Kx; the quadratic step is solved in Fourier coefficients.

        x_{k+1} = x_k - M^{-1} (grad h(x_k) + K'(p_k + rho (K x_k - w_k)) + q_k + e (x_k - z_k))
        p_{k+1} = prox_{rho g*}(p_k + rho v),  w_{k+1} = v + (p_k - p_{k+1}) / rho,    v = r K x_{k+1} + (1 - r) w_k
        z_{k+1} = prox_{f / e}(v + q_k / e),   q_{k+1} = q_k + e (v - z_{k+1}),        v = r x_{k+1} + (1 - r) z_k

    f has a prox, h is a sum of squares of circular blurs of x, and K takes differences. M = H + rho L + e with the
    Hessian H of h and a circulant L >= K'K. Both are diagonal in Fourier coefficients, and the step is exact except at
    the image border. ADMM with a proximal term and relaxation r converges for every rho, e > 0 and 0 < r < 2
    ([Fang, He, Liu and Yuan 2015](https://doi.org/10.1007/s12532-015-0078-2)). z is the answer; its dual point
    consists of p and grad h(x). An iteration costs two transforms for any blur.
    """

    needs = ("differences", "beside_spectrum", "f")
    stays_in_domain = True  # the answer is a prox of f
    ends_proven = True
    init_cost: ClassVar = {"operator": 1, "data_gradient": 1, "dual_from": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1, "prox": 1, "dual_from": 1}

    def init(self, problem: Any, x0: Tensor) -> CirculantState:
        hessian, laplacian = problem.beside_spectrum, problem.differences.wrapped_spectrum
        if hessian is None or laplacian is None or x0.shape[-2:] != problem.differences.grid:
            accepted = "squares behind circular blurs of images"
            raise CapabilityError("problem", "one without a circulant Hessian", accepted)
        hessian, w, unit = hessian.to(x0), problem.differences(x0), problem.step_scale(x0)
        rho = torch.where(torch.isfinite(unit), 1 / (THRESHOLD * unit), 1.0)
        e, p = DOMAIN_PENALTY * hessian.max(), torch.zeros_like(w)
        return CirculantState(
            x0,
            dual=problem.dual_from(p, x0),
            quadratic=x0,
            w=w,
            p=p,
            q=torch.zeros_like(x0),
            data=hessian * torch.fft.rfft2(x0) - torch.fft.rfft2(problem.data_gradient(x0)),
            hessian=hessian,
            metric=hessian + per_instance(rho, x0) * laplacian.to(x0) + e,
            e=e,
            rho=rho,
        )

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> CirculantState:
        """Start at x and p, with q such that the gradients add up to 0."""
        state, p = self.init(problem, x), problem.differences_part(dual)
        q = -problem.data_gradient(x) - problem.differences.adjoint(p)
        return replace(state, dual=dual, p=p, q=q)

    def step(self, problem: Any, state: CirculantState) -> CirculantState:
        return self.advance(problem, state, 1)

    def advance(self, problem: Any, state: CirculantState, count: int) -> CirculantState:
        """Take `count` steps; the dual point of the smooth terms is computed only at the end."""
        x, z, w, p, q, e = state.quadratic, state.x, state.w, state.p, state.q, state.e
        r, rho, hat, rise = RELAXATION, per_instance(state.rho, w), torch.fft.rfft2(x), problem.differences(x)
        for _ in range(count):
            slope = problem.differences.adjoint(p + rho * (rise - w)) + q + e * (x - z)
            hat = hat - (torch.fft.rfft2(slope) + state.hessian * hat - state.data) / state.metric
            x = torch.fft.irfft2(hat, s=x.shape[-2:])
            rise = problem.differences(x)
            ahead, v = torch.lerp(w, rise, r), torch.lerp(z, x, r)
            new = problem.variation.conjugate_prox(p + rho * ahead, state.rho)
            w, p = ahead + (p - new) / rho, new
            z = problem.f.prox(v + q / e, 1 / e)
            q = q + e * (v - z)
        return replace(
            state,
            x=z,
            iteration=state.iteration + count,
            dual=problem.dual_from(p, x),
            quadratic=x,
            w=w,
            p=p,
            q=q,
        )
