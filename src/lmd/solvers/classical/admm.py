"""The alternating direction method of multipliers, with penalties and relaxations that may be learned."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, check_positive
from lmd.core.tensor_cache import TensorCache
from lmd.errors import InputError
from lmd.solvers.base import DualState, Solver
from lmd.terms.base import Scale, add_scaled, per_instance
from lmd.terms.quadratic import times

MAX_SIZE = 2048  # entries of x up to which a matrix of them is inverted
MAX_TUNED_BLOCKS = 4  # number of blocks up to which each is tuned by itself
TINY_STEP = 1e-12  # the step of a prox that only moves points to where the term is finite


# r, 1 / r, s and a of one iteration, each a number, or one per instance `(B,)`; r also one per entry `(1, m)`
Parameters = tuple[Scale, Scale, Scale, Scale]


@dataclass(frozen=True, kw_only=True)
class ADMMState(DualState):
    """The copies of x and of Kx that f and g are taken of; `dual` is the multiplier y of z = Kx."""

    z: Tensor  # in the shape of Kx
    u: Tensor  # x where f is a quadratic form
    v: Tensor  # the multiplier of u = x, or q where f is a quadratic form
    inverses: Tensor  # the matrices of the linear systems, inverted: `(N, n, n)`, or `(N, B, n, n)`
    schedule: tuple[Parameters, ...]  # those of the N iterations that have parameters of their own


class ADMM(Solver[ADMMState]):
    r"""f(x) + g(Kx) as f(u) + g(z) over u = x, z = Kx: x from a linear system, u and z by their proxes.

        x_{k+1} = (r K'K + s)^{-1} (K'(r z_k - y_k) + s u_k - v_k)
        z_{k+1} = prox_{g/r}(z~ + y_k / r),  y_{k+1} = y_k + r (z~ - z_{k+1}),  z~ = a K x_{k+1} + (1 - a) z_k

    and u, v with f and s in the same way. Where f is a quadratic form x'Px / 2 + q'x, P stands for s, and -q for
    s u - v. The penalties r and s are multiples of the problem's own scale; they and the relaxation a are learned for
    each iteration, and constant from the last of `iterations` on, so that the method converges from any point, for all
    penalties and 0 < a < 2 ([Eckstein and Bertsekas 1992](https://doi.org/10.1007/BF01581204)). One iteration is the
    classical method. y is a dual point and certifies x. Each of the `blocks` of Kx has an r of its own: a diagonal
    matrix, with K'rK for r K'K, for problems that share their matrices. With `ends` the parameters are those of phases:
    the second ones take over before iteration ends[0], and so on.

    `precompute_` stores the inverted matrices of a class with the solver, where instances share P and K; for any other
    problem they are computed when a run begins. Where K is the identity and f a quadratic form, the answer is z, where
    g is finite; where f is none, it is u, where f is finite.

    Args:
        iterations: N, those with parameters of their own.
        size: Entries of x, for which inverted matrices are stored; 0 is none.
        penalty: Each r and s at the start, as a multiple of the problem's own scale.
        relaxation: Each a at the start, between 0 and 2.
        blocks: Entries of each block of Kx that has an r of its own; () is one for all.
        ends: N - 1 ascending iterations at which phases end; () is a phase per iteration.

    >>> import lmd
    >>> problem, x0 = lmd.problems.ControlFamily().sample(5, torch.Generator().manual_seed(0))
    >>> lmd.solve(problem, 1e-4, solver=ADMM()).status[0].name
    'TOLERANCE_REACHED'
    """

    needs = ("operator", "dual_prox", "data_prox", "regulariser_prox")
    stays_in_domain = True  # as far as PDHG does
    ends_proven = True
    init_cost: ClassVar = {"operator": 1, "adjoint": 1}
    step_cost: ClassVar = {"operator": 1, "adjoint": 1}

    scales: Tensor
    probe_image: Tensor
    inverses: Tensor
    inverse_penalties: Tensor

    def __init__(
        self,
        iterations: int = 1,
        size: int = 0,
        penalty: float = 1.0,
        relaxation: float = 1.6,
        blocks: Sequence[int] = (),
        ends: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.blocks = [check_count("blocks", n) for n in blocks]
        self.ends = [check_count("ends", n) for n in ends]
        if ends and (len(ends) != iterations - 1 or sorted(set(self.ends)) != self.ends):
            raise InputError("ends", self.ends, f"{iterations - 1} ascending numbers, one less than iterations")
        self.iterations, self.size = check_count("iterations", iterations), check_count("size", size, least=0)
        if not 0 < relaxation < 2:
            raise InputError("relaxation", relaxation, "a number between 0 and 2")
        self.penalty, self.relaxation = check_positive("penalty", penalty), float(relaxation)
        columns = max(1, len(self.blocks)) + 1
        # log r_k, of each block, and log s_k over the problem's scales `(N, J + 1)`
        self.penalties = nn.Parameter(torch.full((iterations, columns), math.log(self.penalty)))
        # a_k / 2 as logits `(N,)`
        self.relaxations = nn.Parameter(torch.full((iterations,), math.log(relaxation / (2 - relaxation))))
        self.register_buffer("probe_image", torch.zeros(size))
        self.register_buffer("scales", torch.zeros(2))
        self._cached = TensorCache[tuple[Parameters, ...]]()
        self.register_buffer("inverses", torch.zeros(iterations, size, size))
        self.register_buffer("inverse_penalties", torch.zeros(iterations, columns))

    @property
    def horizon(self) -> int | None:
        """The iterations before the last phase."""
        return self.ends[-1] if self.ends else self.iterations - 1 if self.iterations > 1 else None

    @torch.no_grad()
    def precompute_(self, problem: Any, x0: Tensor) -> ADMM:
        """Store the inverted matrices of a class whose instances share P and K, for the penalties as they are now."""
        image = _probe(problem, x0)
        if image is None or image.numel() != self.size:
            accepted = f"{self.size} entries and matrices that instances share"
            raise InputError("problem", f"{x0[0].numel()} entries, or a matrix for each instance", accepted)
        self.probe_image, self.scales, self.inverse_penalties = image, _scales(problem, x0), self.penalties.clone()
        self.inverses = self._invert(problem, x0, self._schedule(self.scales))
        return self

    def init(self, problem: Any, x0: Tensor) -> ADMMState:
        """Where K is the identity and f a quadratic form, y is r times how far x0 is outside of the bounds."""
        matrices = self._matrices(problem, x0)
        if not _stays_with_x(problem):
            image = problem.operator(x0)
            return _begin(problem, x0, image, torch.zeros_like(image), *matrices)
        inside = problem.regulariser_prox(x0, TINY_STEP)
        pressure = per_instance(matrices[1][0][0], x0) * (x0 - inside)
        return _begin(problem, inside, inside, pressure, *matrices)

    def resume(self, problem: Any, x: Tensor, dual: Tensor) -> ADMMState:
        stays = _stays_with_x(problem)
        image = problem.regulariser_prox(x, TINY_STEP) if stays else problem.operator(x)
        return _begin(problem, image if stays else x, image, dual, *self._matrices(problem, x))

    def _matrices(self, problem: Any, x: Tensor) -> tuple[Tensor, tuple[Parameters, ...]]:
        """The inverted matrices and the schedule: those that are stored, where these are problems of the class."""
        known, trained = self._knows(problem, x), torch.is_grad_enabled() and self.penalties.requires_grad
        if known and not trained and (schedule := self._stored_schedule()):
            return self.inverses, schedule
        schedule = self._schedule(self.scales if known else _scales(problem, x))
        return self._invert(problem, x, schedule), schedule if trained else _plain(schedule)

    def search_directions(self) -> Tensor:
        """The directions for a search of the parameters of an iteration `(D, J + 2)`.

        Changes of log r, of few blocks each by itself, of log s and of the logit of a.
        """
        unit = torch.diag(torch.ones_like(self.inverse_penalties[0, :1]).expand(self.inverse_penalties.shape[1] + 1))
        r = unit[:-2] if len(self.blocks) <= MAX_TUNED_BLOCKS else unit[:-2].sum(dim=0, keepdim=True)
        return torch.cat([r, unit[-2:]])

    @torch.no_grad()
    def move_(self, row: int, change: Tensor) -> None:
        """Change one of the N rows of parameters by `change` `(J + 2,)`."""
        self.penalties[row] += change[:-1].to(self.penalties)
        self.relaxations[row] += change[-1].to(self.relaxations)

    def _knows(self, problem: Any, x: Tensor) -> bool:
        """Whether the stored matrices are those of this problem: they map one vector alike."""
        if (self.size, self.probe_image.dtype) != (x[0].numel(), x.dtype):
            return False
        image, known = _probe(problem, x), self.probe_image
        if image is None or torch.equal(image, known):
            return image is not None
        return torch.allclose(image, known, rtol=64 * torch.finfo(known.dtype).eps)

    def _schedule(self, scales: Tensor) -> tuple[Parameters, ...]:
        multiples, scales = self.penalties.to(scales.dtype).exp(), scales.reshape(2, -1)
        r = multiples[:, :1] * scales[0]
        if self.blocks:
            sizes = torch.tensor(self.blocks, dtype=torch.int64, device=scales.device)
            r = (multiples[:, :-1] * scales[0]).repeat_interleave(sizes, dim=1)[:, None]
        s = multiples[:, -1:] * scales[1]
        a = (2 * self.relaxations.to(scales.dtype).sigmoid())[:, None].expand_as(s)
        return tuple(zip(r, 1 / r, s, a, strict=True))

    def _stored_schedule(self) -> tuple[Parameters, ...]:
        """The schedule that stored matrices belong to; () where they are for other penalties."""

        def schedule() -> tuple[Parameters, ...]:
            return _plain(self._schedule(self.scales)) if torch.equal(self.inverse_penalties, self.penalties) else ()

        return self._cached.get([self.scales, self.inverse_penalties, self.penalties, self.relaxations], schedule)

    def _invert(self, problem: Any, x: Tensor, schedule: tuple[Parameters, ...]) -> Tensor:
        """(P + K'rK)^{-1}, or (s + K'rK)^{-1} where there is no P, for each iteration; inverted in float64."""
        exact: Any = {"dtype": torch.float64, "device": x.device}
        r, s = (torch.stack([torch.as_tensor(each[i], **exact) for each in schedule]) for i in (0, 2))
        form, operator, size = problem.quadratic, problem.operator, x[0].numel()
        identity = torch.eye(size, dtype=torch.float64, device=x.device)
        if self.blocks:
            K = operator(identity.to(x.dtype).reshape(size, *x.shape[1:])).flatten(1).double().mT
            gram = (K.mT @ (r.mT * K))[:, None]
        else:
            gram = r[..., None, None] * operator.gram(x).double()
        first = s[..., None, None] * identity if form is None else form[0].double()
        inverses = torch.linalg.inv(gram + first).to(x.dtype)
        return (inverses[:, 0] if inverses.shape[1] == 1 else inverses).contiguous()

    def _row(self, iteration: int) -> int:
        """The row of the schedule that an iteration has."""
        return bisect.bisect_right(self.ends, iteration) if self.ends else min(iteration, self.iterations - 1)

    def step(self, problem: Any, state: ADMMState) -> ADMMState:
        k, z, y = self._row(state.iteration), state.z, state.dual
        (r, short, s, a), inverse, operator = state.schedule[k], state.inverses[k], problem.operator
        split, u, v = problem.quadratic is None, state.u, state.v
        back = add_scaled(-y, r, z)
        right = (back if operator.is_identity else operator.adjoint(back)) - v
        right = add_scaled(right, s, u) if split else right
        x = times(right.flatten(1), inverse).reshape_as(right)
        image = torch.lerp(z, x if operator.is_identity else operator(x), per_instance(a, z))
        z = problem.regulariser_prox(add_scaled(image, short, y), short)
        y = add_scaled(y, r, image - z)
        if split:
            relaxed = torch.lerp(u, x, per_instance(a, x))
            u = problem.data_prox(add_scaled(relaxed, 1 / s, v), 1 / s)
            v = add_scaled(v, s, relaxed - u)
        answer = u if split else z if operator.is_identity else x
        return replace(state, x=answer, iteration=state.iteration + 1, dual=y, z=z, u=u, v=v)


def _stays_with_x(problem: Any) -> bool:
    """Whether f is a quadratic form and K the identity: then z is a copy of x where g is finite."""
    return problem.quadratic is not None and problem.operator.is_identity


def _begin(
    problem: Any, x: Tensor, z: Tensor, dual: Tensor, inverses: Tensor, schedule: tuple[Parameters, ...]
) -> ADMMState:
    form = problem.quadratic
    v = -problem.operator.adjoint(dual) if form is None else form[1]
    return ADMMState(x, dual=dual, z=z, u=x, v=v, inverses=inverses, schedule=schedule)


def _plain(schedule: tuple[Parameters, ...]) -> tuple[Parameters, ...]:
    """Plain numbers where all instances and entries share them, with which steps are faster."""

    def number(scale: Scale) -> Scale:
        return float(scale) if isinstance(scale, Tensor) and scale.numel() == 1 else scale

    return tuple((number(r), number(short), number(s), number(a)) for r, short, s, a in schedule)


def _probe(problem: Any, x: Tensor) -> Tensor | None:
    """(P + K'K) c for one vector c, by which a class is known again; None where instances have their own matrices."""
    quadratic, operator = problem.quadratic, problem.operator
    if operator.select(0) is not operator or (quadratic is not None and quadratic[0].ndim == 3):
        return None
    probe = torch.linspace(1, 2, x[0].numel(), dtype=x.dtype, device=x.device)
    if not operator.is_identity:
        image = operator.adjoint(operator(probe.reshape(1, *x.shape[1:]))).flatten()
        return image if quadratic is None else image + quadratic[0] @ probe
    return probe if quadratic is None else torch.addmv(probe, quadratic[0], probe)


def _scales(problem: Any, x: Tensor) -> Tensor:
    """What r and s are multiples of `(2,)`, or `(2, B)`.

    With a P, r is balanced between the ends of the spectrum of P^{-1}K'K ([Ghadimi, Teixeira, Shames and Johansson
    2015](https://doi.org/10.1109/TAC.2014.2354892)); without, s is f's smoothness. Computed in float64.
    """
    if x[0].numel() > MAX_SIZE:
        accepted = f"at most {MAX_SIZE}, as a matrix of them is inverted; take PDHG for more"
        raise InputError("problem", f"{x[0].numel()} entries", accepted)
    gram = problem.operator.gram(x).double()
    if problem.quadratic is None:
        smoothness = 1.0 if problem.data_smoothness is None else problem.data_smoothness
        s = torch.as_tensor(smoothness, dtype=gram.dtype, device=gram.device).mean()
        r = s / torch.linalg.eigvalsh(gram)[..., -1]
    else:
        root = torch.linalg.cholesky(problem.quadratic[0].double())
        half = torch.linalg.solve_triangular(root, gram, upper=False)
        spectrum = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root, half.mT, upper=False))
        most = spectrum[..., -1]
        r = 1 / (torch.where(spectrum > 1e-6 * most[..., None], spectrum, torch.inf).amin(dim=-1) * most).sqrt()
        s = torch.ones_like(r)
    return torch.stack([r, s.expand_as(r)]).to(x.dtype)
