"""Relaxed PDHG whose iterations run in compiled code: models of any misfit, behind operators, and of second order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lmd.solvers.classical.pdhg import RelaxedPDHG, RelaxedState, balanced, is_balancing_due
from lmd.solvers.wrappers import IterateSums, sum_steps
from lmd.tv.calls import as_row, as_row_field, call, grid_of, weight_of

LOST = -1.0  # the datum that stands for none, in masked counts


class Iterated(NamedTuple):
    """The points after some iterations."""

    x: Tensor
    p: Tensor

    target: Tensor  # x~ of the last iteration
    dual: Tensor  # p~ of the last iteration
    sums: tuple[Tensor, Tensor] | None  # of x~ and p~ over all iterations, where they were asked for


Iterations = Callable[[Tensor, Tensor, Tensor, bool], Iterated]
"""From x, p, the numbers of iterations `(B, n, 3)` (tau, sigma, relaxation), and whether to add up x~ and p~."""


class PrimalDual(RelaxedPDHG):
    """`RelaxedPDHG` whose iterations run in compiled code where there is some for the problem.

    Args:
        numbers: a_k, c_k, r_k of the first N iterations `(N, 3)`; None is none.
    """

    def __init__(self, numbers: Tensor | None = None) -> None:
        super().__init__(0 if numbers is None else len(numbers))
        if numbers is not None:
            self.numbers = nn.Parameter(numbers.clone(), requires_grad=False)

    def advance(self, problem: Any, state: RelaxedState, count: int) -> RelaxedState:
        iterations = self._iterations(problem, state)
        if iterations is None:
            return super().advance(problem, state, count)
        for following, _ in self._blocks(problem, iterations, state, count):
            state = following
        return state

    def sum_steps(self, problem: Any, state: RelaxedState, count: int) -> tuple[RelaxedState, IterateSums]:
        """Return the state after `count` iterations, and the sums of x~ and p~ over them, for `Averaged`."""
        iterations = self._iterations(problem, state)
        if iterations is None:
            return sum_steps(self, problem, state, count)
        total = IterateSums.none(state)
        for following, sums in self._blocks(problem, iterations, state, count, summed=True):
            done = following.iteration - state.iteration
            state, total = following, total if sums is None else total.plus(IterateSums(*sums, done))
        return state, total

    def _iterations(self, problem: Any, state: RelaxedState) -> Iterations | None:
        from lmd.tv.matching import iterations_for  # which has plans that use this class

        return iterations_for(problem, state.relaxed, state.relaxed_dual)

    def _blocks(
        self, problem: Any, iterations: Iterations, state: RelaxedState, count: int, summed: bool = False
    ) -> Iterator[tuple[RelaxedState, tuple[Tensor, Tensor] | None]]:
        """Iterate from one time that the steps are balanced to the next; yield each state and the sums up to it."""
        end = state.iteration + count
        while state.iteration < end:
            k = state.iteration
            until = next((j for j in range(k + 1, end) if is_balancing_due(j)), end)
            table = self._table(problem, state.tau, k, until)
            x, p, target, dual, sums = iterations(state.relaxed, state.relaxed_dual, table, summed)
            state = replace(state, x=target, iteration=until, dual=dual, relaxed=x, relaxed_dual=p)
            state = balanced(problem, state) if is_balancing_due(until) else state
            yield state, sums

    def _table(self, problem: Any, tau: Tensor, k: int, until: int) -> Tensor:
        """tau, sigma and relaxation of iterations k to `until` `(B, n, 3)`."""
        own = self.numbers.detach().double()[k:until]
        rest = own.new_tensor([0.0, 0.0, self.relaxation]).expand(until - k - len(own), 3)
        log_tau, log_product, relaxation = torch.cat([own, rest]).unbind(dim=1)
        tau = tau.double()[:, None] * log_tau.exp()
        sigma = log_product.exp() / (tau * problem.operator.norm**2)
        return torch.stack([tau, sigma, relaxation.expand_as(tau)], dim=2)


class Misfit(NamedTuple):
    """misfit(x) + g(Kx) in a box, K the differences of neighbours along one to three axes."""

    noisy: Tensor  # y `(B, C, *size)`
    misfit: int  # MISFIT_... of C
    weight: Tensor  # like y: of its entries, or backgrounds of counts
    low: Tensor  # of each channel `(B, C)`, as `high` is
    high: Tensor
    bound: float | Tensor  # weights of g: a number, one per instance `(B,)`, or a map `(B, 1 or C, 1 or axes, *size)`
    spacing: tuple[float, ...]
    isotropic: bool
    coupled: bool
    delta: float  # of Huber's function; 0 for lengths

    def iterate(self, x: Tensor, p: Tensor, numbers: Tensor, summed: bool = False) -> Iterated:
        """Steps of `RelaxedPDHG` from x_k and p_k."""
        if x.ndim == 3:
            wide = self._replace(
                noisy=self.noisy.unsqueeze(2),
                weight=self.weight.unsqueeze(2),
                bound=as_row(self.bound),
                spacing=(1.0, *self.spacing),
            )
            ends = wide.iterate(x.unsqueeze(2), as_row_field(p), numbers, summed)
            sums = None if ends.sums is None else (ends.sums[0][:, :, 0], ends.sums[1][:, :, 1:, 0])
            return Iterated(ends.x[:, :, 0], ends.p[:, :, 1:, 0], ends.target[:, :, 0], ends.dual[:, :, 1:, 0], sums)
        steps = _Steps(self, x, p, summed)
        steps.go(numbers)
        return steps.ends()


class _Steps:
    """Iterations of images and volumes in memory of their own: where they stand."""

    def __init__(self, model: Misfit, x: Tensor, p: Tensor, summed: bool) -> None:
        self.model = model
        self._x, self._p = (
            each.detach().clone(memory_format=torch.contiguous_format) for each in (x.transpose(1, 2), p)
        )
        self._target, self._dual = torch.empty_like(self._x), torch.empty_like(self._p)
        self._sums = (torch.zeros_like(self._x), torch.zeros_like(self._p)) if summed else None
        self._weights = [weight_of(model.bound, n) for n in range(len(x))]

    @property
    def x(self) -> Tensor:
        """x_k as it is now."""
        return self._x.transpose(1, 2)

    def go(self, numbers: Tensor, slope: Tensor | None = None) -> None:
        """Iterate with numbers `(B, n, 3)`; with a slope, like x, where the misfit is <slope, x>."""
        model, table = self.model, numbers.detach().double().contiguous()
        (sizes, spacing), y = grid_of(model.noisy, model.spacing), model.noisy if slope is None else slope.detach()
        options = (model.isotropic, model.coupled, model.misfit)
        for n, (bound, weights, maps) in enumerate(self._weights):
            data = (y[n], model.weight[n], weights, model.low[n], model.high[n], table[n])
            reals, counts = (bound, model.delta, *spacing), (*sizes, *maps, numbers.shape[1])
            totals = (None, None) if self._sums is None else (self._sums[0][n], self._sums[1][n])
            ends = (self._x[n], self._p[n], self._target[n], self._dual[n], *totals)
            call("lmd_relaxed", data, (reals, counts, options), ends)

    def ends(self) -> Iterated:
        """Where at least one iteration ended."""
        sums = None if self._sums is None else (self._sums[0].transpose(1, 2), self._sums[1])
        return Iterated(self.x, self._p, self._target.transpose(1, 2), self._dual, sums)


class Forward(NamedTuple):
    """A misfit behind an operator A of its own."""

    operator: Any  # A, with its `adjoint`
    scale: float  # what A is multiplied by in the stack of all operators
    misfit: int  # MISFIT_... of C
    y: Tensor
    weight: Tensor  # like y, as in `Misfit`


class Joint(NamedTuple):
    """h(Ax) + g(Kx) in a box: A is applied as it is, all else is compiled."""

    stack: Any  # the operator of the problem: K, then A
    model: Misfit  # g(Kx) in the box, with a linear misfit
    forward: Forward

    def iterate(self, x: Tensor, dual: Tensor, numbers: Tensor, summed: bool = False) -> Iterated:
        """Steps of `RelaxedPDHG` from x_k and p_k."""
        p, q = self.stack.split(dual)
        steps, forward, scale = _Steps(self.model, x, p, summed), self.forward, self.forward.scale
        own = (scale * q.detach()).contiguous()
        answer, over, total = torch.empty_like(own), torch.empty_like(own), torch.zeros_like(own)
        y, weight, misfits = forward.y.expand_as(own), forward.weight.expand_as(own), [forward.misfit]
        for k, rows in enumerate(numbers.detach().double().transpose(0, 1).tolist()):
            z = forward.operator(steps.x).to(own).expand_as(own).contiguous()  # as a user's operator may answer
            for n, (_, sigma, relaxation) in enumerate(rows):
                tables = ((scale**2 * sigma, relaxation), (own[n].numel(),), misfits)
                call("lmd_beside", (z[n], y[n], weight[n]), tables, (own[n], answer[n], over[n], total[n]))
            steps.go(numbers[:, k : k + 1], forward.operator.adjoint(over).to(x).expand_as(x))
        ends, join = steps.ends(), self.stack.join
        sums = None if ends.sums is None else (ends.sums[0], join([ends.sums[1], total / scale]))
        return ends._replace(p=join([ends.p, own / scale]), dual=join([ends.dual, answer / scale]), sums=sums)


class SecondOrder(NamedTuple):
    """misfit(x) + b ||Dx - w|| + c ||Ew|| in a box, of images."""

    noisy: Tensor  # y `(B, C, H, W)`
    misfit: int  # MISFIT_... of C
    weight: Tensor  # like y, as in `Misfit`
    low: Tensor  # of each channel `(B, C)`, as `high` is
    high: Tensor
    bounds: Tensor  # b and c of each instance `(B, 2)`
    spacing: tuple[float, ...]
    isotropic: bool
    coupled: bool

    def iterate(self, x: Tensor, p: Tensor, numbers: Tensor, summed: bool = False) -> Iterated:
        """Steps of `RelaxedPDHG` for (x, w) and its dual points as `SecondOrderModel` has them `(B, n)`."""
        ends = [each.detach().clone(memory_format=torch.contiguous_format) for each in (x, p)]
        last = [torch.empty_like(each) for each in ends]
        sums = (torch.zeros_like(x), torch.zeros_like(p)) if summed else None
        table, options = numbers.detach().double().contiguous(), (self.isotropic, self.coupled, self.misfit)
        for n, bounds in enumerate(self.bounds.tolist()):
            data = (self.noisy[n], self.weight[n], self.low[n], self.high[n], table[n])
            sizes = (*self.noisy.shape[1:], numbers.shape[1])
            outputs = [*ends, *last, *((None, None) if sums is None else sums)]
            own = [None if each is None else each[n] for each in outputs]
            call("lmd_second", data, ((*bounds, *self.spacing), sizes, options), own)
        return Iterated(ends[0], ends[1], last[0], last[1], sums)
