"""Relaxed PDHG with compiled iterations, for models with any misfit, with operators, and of second order.

`match_solver` returns this solver if a schedule was learned for the kind of model. `iterations_for` returns the
compiled iterations that serve a problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lmd import kernels
from lmd.operators import Blur, Differences, ParallelBeam
from lmd.operators.differences import Bends, Slopes
from lmd.problems import Composite
from lmd.solvers.base import Solver
from lmd.solvers.classical.pdhg import RelaxedPDHG, RelaxedState, balanced, is_balancing_due
from lmd.solvers.wrappers import Averaged, IterateSums, NoWorseThanStart, sum_steps
from lmd.terms import L1, Absolute, Box, GroupNorm, KullbackLeibler, Squares
from lmd.terms.base import filled, per_instance
from lmd.terms.wrappers import Boxed, Stacked, join
from lmd.tv import schedules
from lmd.tv.plans import AXES, MEETINGS, NORMS, fits_grid, form_of, grid_of, is_map, is_served

LOST = -1.0  # the datum of lost entries in masked counts


class Iterated(NamedTuple):
    """The points after some iterations."""

    x: Tensor
    p: Tensor

    target: Tensor  # x~ of the last iteration
    dual: Tensor  # p~ of the last iteration
    sums: tuple[Tensor, Tensor] | None  # sums of x~ and p~ over all iterations; None if not requested


Iterations = Callable[[Tensor, Tensor, Tensor, bool], Iterated]
"""Arguments: x, p, steps `(B, n, 3)` (tau, sigma, relaxation of each iteration), and whether to sum x~ and p~."""


class PrimalDual(RelaxedPDHG):
    """`RelaxedPDHG` that runs its iterations in compiled code if there is any for the problem.

    Args:
        numbers: a_k, c_k, r_k of `RelaxedPDHG` for the first N iterations `(N, 3)`; None means N = 0.
    """

    def __init__(self, numbers: Tensor | None = None) -> None:
        super().__init__(0 if numbers is None else len(numbers))
        if numbers is not None:
            self.numbers = nn.Parameter(numbers.clone(), requires_grad=False)

    def advance(self, problem: Any, state: RelaxedState, count: int) -> RelaxedState:
        found = self._iterate(problem, state, count, summed=False)
        return super().advance(problem, state, count) if found is None else found[0]

    def sum_steps(self, problem: Any, state: RelaxedState, count: int) -> tuple[RelaxedState, IterateSums]:
        """Return the state after `count` iterations, and the sums of x~ and p~ over them, for `Averaged`."""
        found = self._iterate(problem, state, count, summed=True)
        return sum_steps(self, problem, state, count) if found is None else found

    def _iterate(
        self, problem: Any, state: RelaxedState, count: int, summed: bool
    ) -> tuple[RelaxedState, IterateSums] | None:
        """Iterate in compiled code, in runs that end when steps are balanced; None if there is no compiled code."""
        iterations = iterations_for(problem, state.relaxed, state.relaxed_dual)
        if iterations is None:
            return None
        end, total = state.iteration + count, IterateSums.none(state)
        while state.iteration < end:
            k = state.iteration
            until = next((j for j in range(k + 1, end) if is_balancing_due(j)), end)
            table = self._table(problem, state.tau, k, until)
            x, p, target, dual, sums = iterations(state.relaxed, state.relaxed_dual, table, summed)
            state = replace(state, x=target, iteration=until, dual=dual, relaxed=x, relaxed_dual=p)
            state = balanced(problem, state) if is_balancing_due(until) else state
            total = total if sums is None else total.plus(IterateSums(*sums, until - k))
        return state, total

    def _table(self, problem: Any, tau: Tensor, k: int, until: int) -> Tensor:
        """Return tau, sigma and relaxation of iterations k to `until` `(B, n, 3)`."""
        own = self.numbers.detach().double()[k:until]
        rest = own.new_tensor([0.0, 0.0, self.relaxation]).expand(until - k - len(own), 3)
        log_tau, log_product, relaxation = torch.cat([own, rest]).unbind(dim=1)
        tau = tau.double()[:, None] * log_tau.exp()
        sigma = log_product.exp() / (tau * problem.operator.norm**2)
        return torch.stack([tau, sigma, relaxation.expand_as(tau)], dim=2)


class Misfit(NamedTuple):
    """misfit(x) + g(Kx) in a box; K takes differences of neighbours along one to three axes."""

    noisy: Tensor  # y `(B, C, *size)`
    misfit: int  # MISFIT_... of C
    weight: Tensor  # like y: weights of its entries, or backgrounds of counts
    low: Tensor  # lower ends of the box for each channel `(B, C)`; `high` has the upper ends
    high: Tensor
    bound: float | Tensor  # weights of g: a number, one per instance `(B,)`, or a map `(B, 1 or C, 1 or axes, *size)`
    spacing: tuple[float, ...]
    isotropic: bool
    coupled: bool
    delta: float  # the delta of Huber's function; 0 for lengths

    def iterate(self, x: Tensor, p: Tensor, numbers: Tensor, summed: bool = False) -> Iterated:
        """Run iterations of `RelaxedPDHG` from x and p; the arguments are those of `Iterations`."""
        steps = _Steps(self, x, p, summed)
        steps.go(numbers)
        return steps.ends()


class _Steps:
    """The state of compiled iterations on signals, images or volumes, in its own memory."""

    def __init__(self, model: Misfit, x: Tensor, p: Tensor, summed: bool) -> None:
        self.model = model
        self._x, self._p = (each.detach().clone(memory_format=torch.contiguous_format) for each in (_by_planes(x), p))
        self._target, self._dual = torch.empty_like(self._x), torch.empty_like(self._p)
        self._written = (self._x, self._p, self._target, self._dual)
        self._sums = (torch.zeros_like(self._x), torch.zeros_like(self._p)) if summed else None
        self._grids = [grid_of(model, n) for n in range(len(x))]

    @property
    def x(self) -> Tensor:
        """The current x_k."""
        return _by_planes(self._x)

    def go(self, numbers: Tensor, slope: Tensor | None = None) -> None:
        """Iterate with the steps `(B, n, 3)` in `numbers`; a `slope` of the shape of x makes the misfit <slope, x>."""
        model, table = self.model, numbers.detach().double().contiguous()
        y, weight = (model.noisy if slope is None else slope.detach()).contiguous(), model.weight.contiguous()
        low, high = model.low.contiguous(), model.high.contiguous()
        sums = self._sums or (None, None)
        for n, (grid, spacing, (bound, weights)) in enumerate(self._grids):
            written = [None if each is None else each[n] for each in (*self._written, *sums)]
            kernels.call(
                "relaxed",
                (y[n], weight[n], weights, low[n], high[n], table[n], *written),
                (bound, model.delta, *spacing),
                (*grid, model.misfit, numbers.shape[1]),
                threads=kernels.threads_for(y[n], MEETINGS),
            )

    def ends(self) -> Iterated:
        """Return the points after at least one iteration."""
        sums = None if self._sums is None else (_by_planes(self._sums[0]), self._sums[1])
        return Iterated(self.x, self._p, _by_planes(self._target), self._dual, sums)


def _by_planes(x: Tensor) -> Tensor:
    """Swap the channels and the planes (first axis) of images and volumes: the layout of C, and back."""
    return x.transpose(1, 2) if x.ndim > 3 else x


def _iterate_joint(
    stack: Any, model: Misfit, term: Any, x: Tensor, dual: Tensor, numbers: Tensor, summed: bool = False
) -> Iterated:
    """Run steps of `RelaxedPDHG` for h(Ax) + g(Kx) in a box; only the steps of Kx and x are compiled.

    The `stack` is the operator of the problem, which stacks K and A in this order. The `model` is g(Kx) in the box,
    with a linear misfit. The `term` is h.
    """
    p, q = stack.split(dual)
    steps, A, scale = _Steps(model, x, p, summed), stack.blocks[1], stack.scales[1]
    own, table = scale * q.detach(), numbers.detach().to(q)
    answer, total = own, torch.zeros_like(own)
    for k in range(table.shape[1]):
        step, relaxation = scale**2 * table[:, k, 1], per_instance(table[:, k, 2], own)
        z = A(steps.x).to(own).expand_as(own)  # an operator of a user may return another dtype or shape
        answer = term.conjugate_prox((per_instance(step, own) * z).add_(own), step)
        over = own.lerp(answer, 2.0)  # 2 answer - own
        own = (answer - own).mul_(relaxation).add_(own)
        total += answer
        steps.go(numbers[:, k : k + 1], A.adjoint(over).to(x).expand_as(x))
    ends = steps.ends()
    sums = None if ends.sums is None else (ends.sums[0], join([ends.sums[1], total / scale]))
    p, dual = join([ends.p, own / scale]), join([ends.dual, answer / scale])
    return ends._replace(p=p, dual=dual, sums=sums)


def _iterate_second_order(model: Misfit, x: Tensor, p: Tensor, numbers: Tensor, summed: bool = False) -> Iterated:
    """Run steps of `RelaxedPDHG` for misfit(x) + b ||Dx - w|| + c ||Ew|| in a box, on images.

    The array x holds (x, w), and p the dual points, both `(B, n)` as in `SecondOrderModel`. `model.bound` `(B, 2)`
    holds b and c of each instance.
    """
    ends = [each.detach().clone(memory_format=torch.contiguous_format) for each in (x, p)]
    last = [torch.empty_like(each) for each in ends]
    sums = (torch.zeros_like(x), torch.zeros_like(p)) if summed else None
    table, sizes = numbers.detach().double().contiguous(), (*model.noisy.shape[1:], numbers.shape[1])
    given = [each.contiguous() for each in (model.noisy, model.weight, model.low, model.high)]
    written = (*ends, *last, *(sums or (None, None)))
    assert isinstance(model.bound, Tensor)
    for n, bounds in enumerate(model.bound.tolist()):
        arrays = [None if each is None else each[n] for each in (*given, table, *written)]
        options = (model.isotropic, model.coupled, model.misfit)
        threads = kernels.threads_for(model.noisy[n], MEETINGS)
        kernels.call("second", arrays, (*bounds, *model.spacing), (*sizes, *options), threads=threads)
    return Iterated(ends[0], ends[1], last[0], last[1], sums)


def match_solver(problem: Any, tolerance: float) -> Solver[Any] | None:
    """Return relaxed PDHG with the steps learned for this kind of model; None if there are none."""
    kind = _kind(problem)
    if kind is None or problem.beside_spectrum is not None:  # ADMM with Fourier transforms solves these
        return None
    numbers = schedules.primal_dual(kind, tolerance)
    return NoWorseThanStart(Averaged(PrimalDual(numbers.to(problem.start().dtype))))


def _kind(problem: Any) -> str | None:
    """Return the kind of model, by which primal-dual schedules are stored; None if there is no schedule for it."""
    f, terms, blocks = problem.f, problem.regularisers, problem.operator.blocks
    if type(f) is Stacked:
        plain = all(type(term) in (L1, GroupNorm) and not (type(term) is L1 and is_map(term.weight)) for term in terms)
        return "second" if plain and [type(K) for K in blocks] == [Slopes, Bends] else None
    if type(terms[0]) not in NORMS or type(blocks[0]) is not Differences:
        return None
    if type(f) is Boxed and len(terms) == 1:
        term: Any = f.term
        if type(term) is KullbackLeibler:
            return "counts"
        if type(term) is Absolute:
            return "absolute"
        is_even = _is_even_squares(term) and not isinstance(f.low, Tensor) and not isinstance(f.high, Tensor)
        return "saddle" if type(term) is Squares and not is_even else None
    if type(f) is not Box or len(terms) != 2:
        return None
    is_counts = type(terms[1]) is KullbackLeibler and terms[1].mask is None
    is_blurred = type(blocks[1]) is Blur and (is_counts or _is_even_squares(terms[1]))
    is_projected = type(blocks[1]) is ParallelBeam and _is_even_squares(terms[1])
    return "saddle" if is_blurred or is_projected else None


def iterations_for(problem: Any, x: Tensor, dual: Tensor) -> Iterations | None:
    """Return a function that runs compiled relaxed PDHG from x and a dual point; None without compiled code."""
    if not isinstance(problem, Composite) or not is_served(x, dual):
        return None
    return misfit_iterations(problem) or second_order_iterations(problem) or joint_iterations(problem, x)


def misfit_iterations(problem: Any) -> Iterations | None:
    """Return iterations for a boxed misfit plus one norm of differences; None for other problems."""
    f, K, terms = problem.f, problem.operator, problem.regularisers
    if type(f) is not Boxed or type(K) is not Differences or len(terms) > 1 or type(terms[0]) not in NORMS:
        return None
    g, data = terms[0], _data_of(f)
    if data is None or not fits_grid(g, data[0]) or not is_served(*data, g.weight):
        return None
    return Misfit(*data, g.weight, K.spacing, *form_of(g)).iterate


def second_order_iterations(problem: Any) -> Iterations | None:
    """Return iterations for second-order models of images without weight maps; None for other problems."""
    terms, K = problem.regularisers, problem.operator
    if type(problem.f) is not Stacked or [type(block) for block in K.blocks] != [Slopes, Bends]:
        return None
    data, g = _data_of(problem.f.terms[0]), terms[0]
    if data is None or data[0].ndim != 4 or type(g) not in NORMS or g.axes not in AXES or K.scales != (1.0, 1.0):
        return None
    if any(is_map(term.weight) for term in terms) or not is_served(*data):
        return None
    y, count = data[0], len(data[0])
    bounds = torch.stack([filled(term.weight, y.new_empty(count)).expand(count) for term in terms], dim=1)
    return partial(_iterate_second_order, Misfit(*data, bounds, problem.slopes.differences.spacing, *form_of(g)))


def joint_iterations(problem: Any, x: Tensor) -> Iterations | None:
    """Return iterations for a norm of differences plus a misfit h(Ax), in a box; None for other problems."""
    f, terms, stack = problem.f, problem.regularisers, problem.operator
    if type(f) is not Box or len(terms) != 2 or len(stack.blocks) != 2 or not 4 <= x.ndim <= 5:
        return None
    g, K = terms[0], stack.blocks[0]
    if type(g) not in NORMS or type(K) is not Differences or not fits_grid(g, x) or not _has_plain_ends(f, x):
        return None
    term: Any = terms[1]
    if type(term) not in MISFITS or term.mask is not None or len(term.y) != len(x):
        return None
    if not is_served(x, term.y, g.weight):
        return None
    linear = (x, kernels.library().MISFIT_LINEAR, x, *_ends(f, x))
    return partial(_iterate_joint, stack, Misfit(*linear, g.weight, K.spacing, *form_of(g)), term)


MISFITS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Squares: ("MISFIT_SQUARES", lambda term: term.curvature),
    KullbackLeibler: ("MISFIT_COUNTS", lambda term: term.background),
    Absolute: ("MISFIT_DISTANCES", lambda term: term.term.weight),
}
"""The name of each compiled misfit in C, and a function from the term to its number for each entry."""


def _data_of(f: Any) -> tuple[Tensor, int, Tensor, Tensor, Tensor] | None:
    """Return the first five fields of `Misfit` for a term about data, boxed or not; None if it is not compiled."""
    term: Any = f.term if type(f) is Boxed else f
    box: Any = f if type(f) is Boxed else Box(-torch.inf, torch.inf)
    if type(term) not in MISFITS or not _has_plain_ends(box, term.y):
        return None
    y: Tensor = term.y
    name, weights = MISFITS[type(term)]
    misfit: int = getattr(kernels.library(), name)
    weight = filled(weights(term), y).expand_as(y)
    low, high = _ends(box, y)
    if term.mask is not None:
        y = torch.where(term.mask > 0, y, LOST)
    return y, misfit, weight, low, high


def _is_even_squares(term: Any) -> bool:
    return type(term) is Squares and isinstance(term.curvature, float)


def _has_plain_ends(box: Any, y: Tensor) -> bool:
    """Return whether each end of a box is at most one number per channel."""
    return all(
        not isinstance(end, Tensor) or end.ndim < 2 or (end.ndim == y.ndim and end[0, 0].numel() == 1)
        for end in (box.low, box.high)
    )


def _ends(box: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lower and the upper ends of a box for each channel `(B, C)`."""
    shape = (*y.shape[:2], *(1,) * (y.ndim - 2))
    return filled(box.low, y).expand(shape).flatten(1), filled(box.high, y).expand(shape).flatten(1)
