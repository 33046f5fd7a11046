"""Which compiled code serves a problem: `match` looks at its terms and operators, by type, and returns a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmd import kernels
from lmd.operators import Blur, Differences, ParallelBeam
from lmd.operators.differences import Bends, Slopes
from lmd.problems import Composite
from lmd.problems.grids import is_circulant
from lmd.solvers.base import Solver
from lmd.solvers.wrappers import Averaged, NoWorseThanStart
from lmd.terms import L1, Absolute, Box, GroupNorm, Huber, KullbackLeibler, Squares
from lmd.terms.base import Scale, filled
from lmd.terms.squares import MaskedSquares
from lmd.terms.stacked import Stacked
from lmd.terms.wrappers import Boxed
from lmd.tv import models, schedules
from lmd.tv.denoising import Denoising
from lmd.tv.inpainting import Inpainting
from lmd.tv.primal_dual import LOST, Forward, Iterations, Joint, Misfit, PrimalDual, SecondOrder

NORMS = (L1, GroupNorm, Huber)  # what total variation is made of; no subclasses of them
AXES = ((), (1,), (2,), (1, 2))
"""The axes of a dual field along which compiled code takes lengths: none, channels, directions, both."""

Plan = Denoising | models.SquaresModel | Inpainting | Solver[Any]
"""How a problem is solved: in one compiled call, or step by step by a solver with compiled iterations."""


def match(problem: Any, tolerance: float) -> Plan | None:
    """The plan by which compiled code solves a problem to a relative gap; None where there is none.

    Args:
        problem: Any problem.
        tolerance: The relative gap to be proven.
    """
    if not isinstance(problem, Composite):
        return None
    return (
        _denoising(problem)
        or _squares_model(problem, tolerance)
        or _inpainting(problem)
        or _primal_dual(problem, tolerance)
    )


def _denoising(problem: Any) -> Denoising | None:
    """Images with squares of one curvature, and weights that are numbers."""
    f, K, g = problem.f, problem.operator, problem.regularisers[0]
    if len(problem.regularisers) > 1 or type(K) is not Differences or type(g) not in (L1, GroupNorm):
        return None
    if not _is_even_squares(f) or f.y.ndim != 4 or g.axes not in AXES or K.spacing != (1.0, 1.0):
        return None
    if not _is_served(f.y, g.weight, also_float64=True):
        return None
    channels, coupled = f.y.shape[1], 1 in g.axes
    if (isinstance(g.weight, Tensor) and g.weight.ndim > 1) or (coupled and channels > kernels.module().MAX_COUPLED):
        return None
    return Denoising(problem, f.y, g.weight, 2 in g.axes, coupled and channels > 1)


def _squares_model(problem: Any, tolerance: float) -> models.SquaresModel | None:
    """Squares of one curvature, in a box or not, with any norm of differences along one to three axes."""
    f, g = problem.f, _single_norm(problem)
    is_boxed = type(f) is Boxed and not isinstance(f.low, Tensor) and not isinstance(f.high, Tensor)
    squares = f.term if is_boxed else f
    if not _is_even_squares(squares) or g is None or tolerance < models.MIN_TOLERANCE:
        return None
    if not _fits_grid(g, squares.y) or not _is_served(squares.y, g.weight):
        return None
    return models.model_of(problem)


def _inpainting(problem: Any) -> Inpainting | None:
    """Images with masked squares, and weights that are numbers."""
    f, g = problem.f, _single_norm(problem)
    if type(f) is not MaskedSquares or g is None or isinstance(g, Huber) or f.y.ndim != 4:
        return None
    if g.axes not in ((), (2,)) or _is_map(g.weight) or problem.operator.spacing != (1.0, 1.0):
        return None
    if not _is_served(f.y, g.weight, also_float64=True):
        return None
    return Inpainting(problem, f.y, f.mask, f.low, f.high, g.weight, f.scale, problem.operator.norm, bool(g.axes))


def _primal_dual(problem: Any, tolerance: float) -> Solver[Any] | None:
    """Relaxed PDHG with learned numbers for this kind of model; None where none were learned."""
    kind = _kind(problem)
    if kind is None or (
        problem.beside_spectrum is not None and is_circulant(problem.beside)
    ):  # for which there is ADMM with Fourier transforms
        return None
    numbers = schedules.primal_dual(kind, tolerance)
    return NoWorseThanStart(Averaged(PrimalDual(numbers.to(problem.start().dtype))))


def _kind(problem: Any) -> str | None:
    """The kind of model that a schedule of primal-dual iterations was learned for."""
    f, terms, blocks = problem.f, problem.regularisers, problem.operator.blocks
    if type(f) is Stacked:
        plain = all(type(term) in (L1, GroupNorm) and not (type(term) is L1 and _is_map(term.weight)) for term in terms)
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
    """Compiled iterations of relaxed PDHG from x and a dual point; None where there are none for the problem."""
    if not isinstance(problem, Composite) or not _is_served(x, dual):
        return None
    if type(problem.f) is Stacked:
        second = second_order_of(problem)
        return None if second is None else second.iterate
    single = misfit_model_of(problem)
    if single is not None:
        return single.iterate
    joint = joint_of(problem, x)
    return None if joint is None else joint.iterate


def misfit_model_of(problem: Any) -> Misfit | None:
    """A boxed misfit and one norm of differences."""
    g = _single_norm(problem)
    data = _data_of(problem.f) if g is not None and type(problem.f) is Boxed else None
    if g is None or data is None or not _fits_grid(g, data[0]) or not _is_served(*data, g.weight):
        return None
    return Misfit(*data, g.weight, problem.operator.spacing, *_form(g))


def second_order_of(problem: Any) -> SecondOrder | None:
    """A misfit of images and norms of slopes and bends, with weights that are numbers."""
    terms, K = problem.regularisers, problem.operator
    if type(problem.f) is not Stacked or [type(block) for block in K.blocks] != [Slopes, Bends]:
        return None
    data, g = _data_of(problem.f.terms[0]), terms[0]
    if data is None or data[0].ndim != 4 or type(g) not in NORMS or g.axes not in AXES or K.scales != (1.0, 1.0):
        return None
    if any(_is_map(term.weight) for term in terms) or not _is_served(*data):
        return None
    y, count = data[0], len(data[0])
    bounds = torch.stack([filled(term.weight, y.new_empty(count)).expand(count) for term in terms], dim=1)
    return SecondOrder(*data, bounds, problem.slopes.differences.spacing, 2 in g.axes, 1 in g.axes)


def joint_of(problem: Any, x: Tensor) -> Joint | None:
    """A norm of differences and a misfit behind an operator of its own, in a box."""
    f, terms, stack = problem.f, problem.regularisers, problem.operator
    if type(f) is not Box or len(terms) != 2 or len(stack.blocks) != 2 or not 4 <= x.ndim <= 5:
        return None
    g, K = terms[0], stack.blocks[0]
    if type(g) not in NORMS or type(K) is not Differences or not _fits_grid(g, x) or not _is_end(f.low, x, f.high):
        return None
    term: Any = terms[1]
    if type(term) not in MISFITS or term.mask is not None or not _is_served(x, term.y, g.weight):
        return None
    if len(term.y) != len(x):
        return None
    low, high = (filled(end, x).expand(*x.shape[:2], *(1,) * (x.ndim - 2)).flatten(1) for end in (f.low, f.high))
    model = Misfit(x, kernels.module().MISFIT_LINEAR, x, low, high, g.weight, K.spacing, *_form(g))
    misfit, weight = _misfit_of(term)
    forward = Forward(stack.blocks[1], stack.scales[1], misfit, term.y.contiguous(), weight.contiguous())
    return Joint(stack, model, forward)


MISFITS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    Squares: ("MISFIT_SQUARES", lambda term: term.curvature),
    KullbackLeibler: ("MISFIT_COUNTS", lambda term: term.background),
    Absolute: ("MISFIT_DISTANCES", lambda term: term.term.weight),
}
"""The name of each compiled misfit in C, and what it has for every entry."""


def _misfit_of(term: Any) -> tuple[int, Tensor]:
    """The number of a misfit in C, and the weights of its entries."""
    name, weights = MISFITS[type(term)]
    number: int = getattr(kernels.module(), name)
    return number, filled(weights(term), term.y).expand_as(term.y)


def _data_of(f: Any) -> tuple[Tensor, int, Tensor, Tensor, Tensor] | None:
    """The first five fields of `Misfit` for a term about data, in a box or not; None where it is not compiled."""
    term: Any = f.term if type(f) is Boxed else f
    low, high = (f.low, f.high) if type(f) is Boxed else (-torch.inf, torch.inf)
    if type(term) not in MISFITS or not _is_end(low, term.y, high):
        return None
    y: Tensor = term.y
    misfit, weight = _misfit_of(term)
    low, high = (filled(end, y).expand(*y.shape[:2], *(1,) * (y.ndim - 2)).flatten(1) for end in (low, high))
    if term.mask is not None:
        y = torch.where(term.mask > 0, y, LOST)
    return y, misfit, weight, low, high


def _single_norm(problem: Any) -> Any:
    """The norm of differences, where that is all there is beside f; None elsewhere."""
    terms = problem.regularisers
    alone = len(terms) == 1 and type(terms[0]) in NORMS and type(problem.operator) is Differences
    return terms[0] if alone else None


def _form(g: Any) -> tuple[bool, bool, float]:
    """Whether lengths are taken along directions and along channels, and Huber's delta."""
    return 2 in g.axes, 1 in g.axes, getattr(g, "delta", 0.0)


def _is_even_squares(term: Any) -> bool:
    return type(term) is Squares and not isinstance(term.scale, Tensor) and not isinstance(term.weight, Tensor)


def _is_map(weight: Scale) -> bool:
    """Whether a weight has a number for each pixel."""
    return isinstance(weight, Tensor) and weight.ndim > 1


def _fits_grid(g: Any, y: Tensor) -> bool:
    """Whether lengths and weights of a norm are of a form that compiled code knows, along one to three axes."""
    if not 3 <= y.ndim <= 5 or g.axes not in AXES or isinstance(getattr(g, "delta", 0.0), Tensor):
        return False
    if not _is_map(g.weight):
        return True
    shape = g.weight.shape
    whole = len(shape) == y.ndim + 1 and shape[0] == len(y) and shape[3:] == y.shape[2:]
    channels, components = {1, y.shape[1]}, {1, y.ndim - 2}
    return whole and shape[1] in channels and shape[2] in components and all(shape[axis] == 1 for axis in g.axes)


def _is_end(low: Scale, y: Tensor, high: Scale) -> bool:
    """Whether the ends of a box are one number for each channel, at most."""
    return all(
        not isinstance(end, Tensor) or end.ndim < 2 or (end.ndim == y.ndim and end[0, 0].numel() == 1)
        for end in (low, high)
    )


def _is_served(*data: Any, also_float64: bool = False) -> bool:
    """Whether compiled code can read the tensors among these: of one dtype, on the CPU, no derivatives recorded."""
    dtype, recording = data[0].dtype, torch.is_grad_enabled()
    for each in data:
        if isinstance(each, Tensor) and (each.dtype != dtype or not each.is_cpu or (recording and each.requires_grad)):
            return False
    return (dtype == torch.float32 or (also_float64 and dtype == torch.float64)) and kernels.library() is not None
