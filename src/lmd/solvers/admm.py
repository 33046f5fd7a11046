"""The alternating direction method of multipliers, with penalties and relaxations that may be learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lmd.checks import check_count, check_positive
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import DualState, Solver
from lmd.solvers.pdhg import SaddleProblem
from lmd.terms.base import Scale, add_scaled, per_instance
from lmd.terms.quadratic import times

LARGEST_SYSTEM = 2048
"""Entries of x up to which a matrix of them is inverted."""

NO_STEP = 1e-12
"""A prox with so short a step moves points no further than to where the term is finite."""


class SplitProblem(SaddleProblem, Protocol):
    """What ADMM needs of a problem beyond what PDHG needs: a prox of g, and the quadratic form that f may be."""

    @property
    def quadratic(self) -> tuple[Tensor, Tensor] | None: ...

    def regulariser_prox(self, z: Tensor, step: Scale) -> Tensor: ...


Numbers = tuple[Scale, Scale, Scale]
"""r, s and a of one iteration, each a number, or one per instance `(B,)`."""


@dataclass(frozen=True, kw_only=True)
class ADMMState(DualState):
    """The copies of x and of Kx that f and g are taken of; `dual` is the multiplier y of z = Kx."""

    behind: Tensor
    """z, in the shape of Kx."""

    copy: Tensor
    """u, or x where f is a quadratic form."""

    pull: Tensor
    """v, the multiplier of u = x, or q where f is a quadratic form."""

    inverses: Tensor
    """The matrices of the linear systems, inverted: `(N, n, n)`, or `(N, B, n, n)`."""

    numbers: tuple[Numbers, ...]
    """Those of the N iterations that have numbers of their own."""


class ADMM(Solver[ADMMState, SplitProblem]):
    r"""f(x) + g(Kx) as f(u) + g(z) over u = x, z = Kx: x from a linear system, u and z by their proxes.

        x_{k+1} = (r K'K + s)^{-1} (K'(r z_k - y_k) + s u_k - v_k)
        z_{k+1} = prox_{g/r}(z~ + y_k / r),  y_{k+1} = y_k + r (z~ - z_{k+1}),  z~ = a K x_{k+1} + (1 - a) z_k

    and u, v with f and s in the same way. Where f is a quadratic form x'Px / 2 + q'x it stays with x: P stands for s,
    and -q for s u - v. The penalties r and s and the relaxation a of each iteration are logarithms of multiples of the
    problem's own scale. Those of the last of `iterations` are those of all later ones: constant, so that the method
    converges from any point, for all penalties and 0 < a < 2 ([Eckstein and Bertsekas
    1992](https://doi.org/10.1007/BF01581204)). Training unrolls the ones before it. One iteration is the classical
    method. y is a dual point and certifies x.

    The inverted matrices of the class are kept with the solver (`keep_`), where instances share P and K and x has
    `size` entries; for any other problem they are computed when a run begins. Where K is the identity and f a quadratic
    form, the answer is z, where g is finite; where f is none, it is u, where f is finite.

    >>> import lmd
    >>> problem, x0 = lmd.problems.ControlFamily().sample(5, torch.Generator().manual_seed(0))
    >>> lmd.solve(problem, 1e-4, solver=ADMM()).status[0].name
    'TOLERANCE_REACHED'
    """

    probed: Tensor
    basis: Tensor
    spectrum: Tensor
    scales: Tensor
    kept: Tensor
    kept_for: Tensor

    def __init__(self, iterations: int = 1, size: int = 0, penalty: float = 1.0, relaxation: float = 1.6) -> None:
        super().__init__()
        self.iterations, self.size = check_count("iterations", iterations), check_count("size", size, least=0)
        if not 0 < relaxation < 2:
            raise InputError("relaxation", relaxation, "a number between 0 and 2")
        self.penalty, self.relaxation = check_positive("penalty", penalty), float(relaxation)
        self.penalties = nn.Parameter(torch.full((iterations, 2), math.log(self.penalty)))
        """log r_k and log s_k over the problem's scales `(N, 2)`."""
        self.relaxations = nn.Parameter(torch.full((iterations,), math.log(relaxation / (2 - relaxation))))
        """a_k / 2 as logits `(N,)`."""
        for name, *shape in (("probed", size), ("basis", size, size), ("spectrum", size), ("scales", 2)):
            self.register_buffer(name, torch.zeros(*shape))
        self._cached: tuple[Any, tuple[Numbers, ...]] = (), ()
        self.register_buffer("kept", torch.zeros(iterations, size, size))
        self.register_buffer("kept_for", torch.zeros(iterations, 2))

    def config(self) -> dict[str, Any]:
        names = ("iterations", "size", "penalty", "relaxation")
        return {name: getattr(self, name) for name in names}

    @property
    def needs(self) -> tuple[str, ...]:
        return ("operator", "dual_prox", "data_prox", "regulariser_prox")

    @property
    def horizon(self) -> int | None:
        """All but the last, which is the method's own."""
        return self.iterations - 1 if self.iterations > 1 else None

    @property
    def ends_proven(self) -> bool:
        return True

    def keeps_to_domain(self, problem: Problem) -> bool:
        """As far as PDHG does."""
        return True

    @property
    def init_cost(self) -> dict[str, int]:
        return {"operator": 1, "adjoint": 1}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"operator": 1, "adjoint": 1}

    @torch.no_grad()
    def keep_(self, problem: SplitProblem, x0: Tensor) -> ADMM:
        """Keep the inverted matrices of a class whose instances share P and K, for the penalties as they are now."""
        image = _probe(problem, x0)
        if image is None or image.numel() != self.size:
            accepted = f"{self.size} entries and matrices that instances share"
            raise InputError("problem", f"{x0[0].numel()} entries, or a matrix for each instance", accepted)
        self.probed = image
        self.basis, self.spectrum, self.scales = _system(problem, x0)
        self.kept, self.kept_for = (
            self._inverses(problem, self.basis, self.spectrum, self.scales),
            self.penalties.clone(),
        )
        return self

    def init(self, problem: SplitProblem, x0: Tensor) -> ADMMState:
        return self.resume(problem, x0, _first_dual(problem, x0))

    def resume(self, problem: SplitProblem, x: Tensor, dual: Tensor) -> ADMMState:
        image = _probe(problem, x) if (self.size, self.probed.dtype) == (x[0].numel(), x.dtype) else None
        known = image is not None and _same(image, self.probed)
        basis, spectrum, scales = (self.basis, self.spectrum, self.scales) if known else _system(problem, x)
        if torch.is_grad_enabled() and self.penalties.requires_grad:
            inverses, numbers = self._inverses(problem, basis, spectrum, scales), self._numbers(scales)
        elif known and torch.equal(self.kept_for, self.penalties):
            inverses, numbers = self.kept, self._kept_numbers()
        else:
            inverses, numbers = self._inverses(problem, basis, spectrum, scales), _plain(self._numbers(scales))
        quadratic = problem.quadratic
        if quadratic is not None and problem.operator.is_identity:
            x = image = problem.regulariser_prox(x, NO_STEP)
        else:
            image = problem.operator(x)
        pull = -problem.operator.adjoint(dual) if quadratic is None else quadratic[1]
        return ADMMState(x, dual=dual, behind=image, copy=x, pull=pull, inverses=inverses, numbers=numbers)

    def _numbers(self, scales: Tensor) -> tuple[Numbers, ...]:
        r, s = (self.penalties.to(scales.dtype).exp().mT[..., None] * scales.reshape(2, 1, -1)).unbind()
        a = (2 * self.relaxations.to(scales.dtype).sigmoid())[:, None].expand_as(r)
        return tuple(zip(r, s, a, strict=True))

    def _kept_numbers(self) -> tuple[Numbers, ...]:
        """Those of the class that is kept, as plain numbers, which are made anew when what was learned changes."""
        state = tuple((id(each), each._version) for each in (self.penalties, self.relaxations, self.scales))
        if self._cached[0] != state:
            self._cached = state, _plain(self._numbers(self.scales))
        return self._cached[1]

    def _inverses(self, problem: SplitProblem, basis: Tensor, spectrum: Tensor, scales: Tensor) -> Tensor:
        """W (s + r D)^{-1} W' for each iteration; s is 1 where P is in W."""
        r, s = (self.penalties.to(basis.dtype).exp().mT[..., None] * scales.reshape(2, 1, -1)).unbind()
        if problem.quadratic is not None:
            s = torch.ones_like(s)
        shape = (self.iterations, *spectrum.shape[:-1])
        weights = 1 / (s.reshape(*shape, 1) + r.reshape(*shape, 1) * spectrum)
        return (basis * weights[..., None, :]) @ basis.mT

    def step(self, problem: SplitProblem, state: ADMMState) -> ADMMState:
        k, z, y = min(state.iteration, self.iterations - 1), state.behind, state.dual
        (r, s, a), inverse, operator = state.numbers[k], state.inverses[k], problem.operator
        split, u, v = problem.quadratic is None, state.copy, state.pull
        back = add_scaled(-y, r, z)
        right = (back if operator.is_identity else operator.adjoint(back)) - v
        right = add_scaled(right, s, u) if split else right
        x = times(right.flatten(1), inverse).reshape_as(right)
        image = torch.lerp(z, x if operator.is_identity else operator(x), per_instance(a, z))
        z = problem.regulariser_prox(add_scaled(image, 1 / r, y), 1 / r)
        y = add_scaled(y, r, image - z)
        if split:
            relaxed = torch.lerp(u, x, per_instance(a, x))
            u = problem.data_prox(add_scaled(relaxed, 1 / s, v), 1 / s)
            v = add_scaled(v, s, relaxed - u)
        answer = u if split else z if operator.is_identity else x
        return ADMMState(
            answer,
            state.iteration + 1,
            dual=y,
            behind=z,
            copy=u,
            pull=v,
            inverses=state.inverses,
            numbers=state.numbers,
        )


def _plain(numbers: tuple[Numbers, ...]) -> tuple[Numbers, ...]:
    """As plain numbers where all instances share them, with which steps are faster."""
    if any(isinstance(each, Tensor) and each.numel() > 1 for each in numbers[0]):
        return numbers
    return tuple((float(r), float(s), float(a)) for r, s, a in numbers)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two images of the probe differ by rounding alone."""
    return torch.equal(one, other) or torch.allclose(one, other, rtol=64 * torch.finfo(one.dtype).eps)


def _first_dual(problem: SplitProblem, x: Tensor) -> Tensor:
    """-(Px + q) where K is the identity, as at a minimum Px + q + y = 0; else 0."""
    if problem.quadratic is None or not problem.operator.is_identity:
        return torch.zeros_like(problem.operator(x))
    P, q = problem.quadratic
    return -(times(x, P) + q)


def _probe(problem: SplitProblem, x: Tensor) -> Tensor | None:
    """(P + K'K) c for one vector c, by which a class is known again; None where instances have their own matrices."""
    quadratic, operator = problem.quadratic, problem.operator
    if operator.select(0) is not operator or (quadratic is not None and quadratic[0].ndim == 3):
        return None
    probe = torch.linspace(1, 2, x[0].numel(), dtype=x.dtype, device=x.device)
    if not operator.is_identity:
        image = operator.adjoint(operator(probe.reshape(1, *x.shape[1:]))).flatten()
        return image if quadratic is None else image + quadratic[0] @ probe
    return probe if quadratic is None else torch.addmv(probe, quadratic[0], probe)


def _system(problem: SplitProblem, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W and D `(n)` with W'(P + r K'K)W = I + r D, or, without P, W'(s + r K'K)W = s + r D; and scales of r and s.

    With a P, r is balanced between the ends of D ([Ghadimi, Teixeira, Shames and Johansson
    2015](https://doi.org/10.1109/TAC.2014.2354892)); without, s is f's smoothness. Computed in float64.
    """
    if x[0].numel() > LARGEST_SYSTEM:
        accepted = f"at most {LARGEST_SYSTEM}, as a matrix of them is inverted; take PDHG for more"
        raise InputError("problem", f"{x[0].numel()} entries", accepted)
    gram = problem.operator.gram(x).double()
    if problem.quadratic is None:
        spectrum, basis = torch.linalg.eigh(gram)
        smoothness = 1.0 if problem.data_smoothness is None else problem.data_smoothness
        s = torch.as_tensor(smoothness, dtype=gram.dtype, device=gram.device).mean()
        r = s / spectrum[..., -1]
    else:
        root = torch.linalg.cholesky(problem.quadratic[0].double())
        half = torch.linalg.solve_triangular(root, gram, upper=False)
        spectrum, turned = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.mT, upper=False))
        basis = torch.linalg.solve_triangular(root.mT, turned, upper=True)
        most = spectrum[..., -1]
        least = torch.where(spectrum > 1e-6 * most[..., None], spectrum, torch.inf).amin(dim=-1)
        r = 1 / (least * most).sqrt()
        s = torch.ones_like(r)
    return basis.to(x.dtype), spectrum.clamp(min=0).to(x.dtype), torch.stack([r, s.expand_as(r)]).to(x.dtype)
