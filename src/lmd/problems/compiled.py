"""Values and gaps of composites whose parts there is compiled code for: the one place that looks them up."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lmd import kernels
from lmd.kernels import loop, saddle, volume
from lmd.terms.base import Scale, filled

if TYPE_CHECKING:
    from lmd.problems.composite import Composite

Iterations = Callable[[Tensor, Tensor, Tensor, bool], volume.Relaxed]
"""From x, p, `numbers` `(B, n, 3)`, and whether to add up what they end with."""

EPSILON = torch.finfo(torch.float64).eps
"""The rounding of what is summed up in float64."""


@dataclass(frozen=True)
class GapSums:
    """F(x) = s ||x - y||^2 + b |Kx| and its gaps `(B,)`, in float64, from sums over float32 numbers."""

    sums: kernels.TVSums
    s: float
    b: Scale

    @property
    def value(self) -> Tensor:
        return self.s * self.sums.misfit + self.b * self.sums.length

    @property
    def gap(self) -> Tensor:
        return self.sums.slack + self.s * self.sums.square

    def rounding(self, norm: float, roundings: float) -> Tensor:
        """Of the gap, from b |Kx|, ||x - y|| and ||p||: docs/guarantees.md.

        The misfit is that of x - y + K'p / 2s, each part of which is right to a few eps relative to its own size.
        """
        sums, s = self.sums, self.s
        off = roundings * EPSILON * (sums.misfit.sqrt() + norm / (2 * s) * sums.dual.sqrt())
        return 32 * EPSILON * self.b * sums.length + 2 * (s * self.gap).sqrt() * off + s * off.square()


def sums_of(problem: Composite, x: Tensor, dual: Tensor | None = None) -> GapSums | None:
    """What the value of x, and with a dual point the gap, is made of; None where nothing is compiled for it."""
    if not kernels.has("tv_sums", problem.parts):
        return None
    f: Any = problem.f
    s, bound = f.curvature, _bound(problem)
    if not _serves(x, bound, f.y, *(() if dual is None else (dual,))):
        return None
    return GapSums(kernels.tv_sums(x, dual, f.y, bound, 0.5 / s), s, bound)


def value_of(problem: Composite, x: Tensor) -> Tensor | None:
    """F(x) `(B,)`, where the whole or what stands behind the operator is compiled; otherwise None."""
    if x.dtype != torch.float32:
        return None
    if (sums := sums_of(problem, x)) is not None:
        return sums.value.to(x.dtype)
    if not kernels.has("tv_sums", problem.parts[1:]) or not _serves(x, bound := _bound(problem)):
        return None
    return problem.data_value(x) + bound * kernels.tv_sums(x, None, None, bound).length.to(x.dtype)


def gradient_of(problem: Any, x: Tensor, widths: Tensor, shares: Tensor) -> tuple[Tensor, Tensor] | None:
    """The smoothed gradient for several widths `(J,)` in shares, and its dual points; None where it is not compiled."""
    if not kernels.has("smoothed_gradient", problem.parts):
        return None
    f, bound = problem.f, _bound(problem)
    if not _serves(x, bound, f.y, widths, shares):
        return None
    return kernels.smoothed_gradient(x, f.y, f.mask, bound, f.smoothness, widths / f.smoothness, shares)


def is_denoising(problem: Any, *tensors: Tensor) -> bool:
    """Whether the compiled loop of denoising serves a problem, and these tensors."""
    if not kernels.has("fgp", problem.parts) or problem.f.y.ndim != 4:
        return False
    bound, coupled = _bound(problem), 1 in problem.regularisers[0].axes
    is_map = isinstance(bound, Tensor) and bound.ndim > 1
    if is_map or (coupled and problem.f.y.shape[1] > loop.MOST_COUPLED):
        return False
    return loop.serves(problem.f.y, *((bound,) if isinstance(bound, Tensor) else ()), *tensors)


def model_of(problem: Any, *tensors: Tensor) -> loop.Model | None:
    """What the compiled loop has to know of a problem; None where it does not serve it, or these tensors."""
    if not is_denoising(problem, *tensors):
        return None
    f, operator = problem.f, problem.operator
    axes = problem.regularisers[0].axes
    form = (2 in axes, 1 in axes and f.y.shape[1] > 1)
    return loop.Model(f.y, _bound(problem), f.curvature, operator.norm, operator.roundings, *form)


def composed_of(problem: Any, tolerance: float) -> volume.Model | None:
    """What the compiled loop of models has to know of a problem; None where it does not serve it, or the tolerance."""
    if not kernels.has("model", problem.parts) or tolerance < volume.LEAST:
        return None
    f, g, operator, bound = problem.f, problem.regularisers[0], problem.operator, _bound(problem)
    squares = getattr(f, "term", f)
    if not _is_variation(g, squares.y) or not kernels.serves(squares.y, *_tensors(bound)):
        return None
    box = None if squares is f else (float(f.low), float(f.high))
    form = (2 in g.axes, 1 in g.axes, getattr(g, "delta", 0.0))
    return volume.Model(
        squares.y, bound, squares.curvature, operator.spacing, operator.norm, operator.roundings, *form, box
    )


def split_of(problem: Any, *tensors: Tensor) -> volume.Split | None:
    """What the compiled iterations of relaxed PDHG have to know of a problem; None where they do not serve it."""
    if not kernels.has("relaxed", problem.parts):
        return None
    g, bound, misfit = problem.regularisers[0], _bound(problem), misfit_of(problem.f)
    if misfit is None or not _is_variation(g, misfit.y) or not kernels.serves(*misfit[1:], *_tensors(bound), *tensors):
        return None
    form = (2 in g.axes, 1 in g.axes, getattr(g, "delta", 0.0))
    return volume.Split(misfit.y, misfit.kind, *misfit[2:], bound, problem.operator.spacing, *form)


class CompiledMisfit(NamedTuple):
    """A misfit in a box, as compiled iterations have it."""

    kind: int
    """An index of `volume.MISFITS`."""

    y: Tensor
    weight: Tensor
    """Like y: of its entries, or backgrounds of counts."""

    low: Tensor
    """Of each channel `(B, C)`, as `high` is."""

    high: Tensor


def misfit_of(f: Any) -> CompiledMisfit | None:
    """The misfit of a term about data, in a box or not; None where it is none that is compiled."""
    boxed = type(f).__name__ == "Boxed"
    term, low, high = (f.term, f.low, f.high) if boxed else (f, -torch.inf, torch.inf)
    kept = term.term if type(term).__name__ == "Masked" else term
    if type(kept).__name__ not in WEIGHTS or not (_is_end(low, kept.y) and _is_end(high, kept.y)):
        return None
    mask, y = (None if kept is term else term.mask), kept.y
    weight = filled(WEIGHTS[type(kept).__name__](kept), y).expand_as(y)
    ends = (filled(end, y).expand(*y.shape[:2], *(1,) * (y.ndim - 2)).flatten(1) for end in (low, high))
    y = y if mask is None else torch.where(mask > 0, y, volume.LOST)
    return CompiledMisfit(volume.MISFITS.index(type(kept).__name__), y, weight, *ends)


def second_of(problem: Any, *tensors: Tensor) -> volume.SecondOrder | None:
    """What they have to know of a second-order model of images; None where they do not serve it."""
    if not kernels.has("second", problem.parts):
        return None
    misfit, g = misfit_of(problem.f.blocks[0]), problem.regularisers[0]
    weights = [_tensors(term.weight) for term in problem.regularisers]
    if misfit is None or misfit.y.ndim != 4 or g.axes not in FORMS or not kernels.serves(*misfit[1:], *tensors):
        return None
    if any(each.ndim > 1 for own in weights for each in own) or problem.operator.scales != (1.0, 1.0):
        return None
    count = len(misfit.y)
    bounds = [filled(term.weight, misfit.y.new_empty(count)).expand(count) for term in problem.regularisers]
    spacing = problem.slopes.differences.spacing
    form = spacing, 2 in g.axes, 1 in g.axes
    return volume.SecondOrder(misfit.y, misfit.kind, *misfit[2:], torch.stack(bounds, dim=1), *form)


def iterations_of(problem: Any, x: Tensor, dual: Tensor, *tensors: Tensor) -> Iterations | None:
    """Compiled iterations of relaxed PDHG of a problem, from x and its dual point; None where there are none."""
    if (model := split_of(problem, x, dual, *tensors)) is not None:
        return functools.partial(volume.relaxed, model)
    if (second := second_of(problem, x, dual, *tensors)) is not None:
        return functools.partial(volume.second, second)
    model, behind = match_joint(problem, x, dual, *tensors), match_forward(problem, x)
    return None if model is None or behind is None else functools.partial(_joined, problem.operator, model, behind)


def _joined(
    stack: Any, model: volume.Split, behind: volume.Behind, x: Tensor, dual: Tensor, numbers: Tensor, summed: bool
) -> volume.Relaxed:
    """Iterations of both parts of a dual point."""
    p, q = stack.split(dual)
    one, other = volume.beside(model, behind, x, p, q, numbers, summed)
    sums = None
    if one.sums is not None and other.sums is not None:
        sums = one.sums[0], stack.join([one.sums[1], other.sums[1]])
    return one._replace(p=stack.join([one.p, other.p]), dual=stack.join([one.dual, other.dual]), sums=sums)


def match_forward(problem: Any, x: Tensor) -> volume.Behind | None:
    """The misfit that stands behind the second operator; None where it is none that is compiled."""
    term, stack = problem.regularisers[-1], problem.operator
    kind = type(term).__name__
    if kind not in WEIGHTS or len(stack.blocks) != 2:
        return None
    weight = filled(WEIGHTS[kind](term), term.y)
    if not kernels.serves(term.y, weight) or len(term.y) != len(x):
        return None
    whole = term.y.contiguous(), weight.expand_as(term.y).contiguous()
    return volume.Behind(stack.blocks[1], stack.scales[1], volume.MISFITS.index(kind), *whole)


def match_joint(problem: Any, x: Tensor, *tensors: Tensor) -> volume.Split | None:
    """What they have to know where another term has an operator of its own; None where they do not serve it."""
    if not kernels.has("beside", problem.parts[:3]) or len(problem.regularisers) != 2 or not 4 <= x.ndim <= 5:
        return None
    f, g, bound = problem.f, problem.regularisers[0], _bound(problem)
    ends = [filled(end, x).expand(*x.shape[:2], *(1,) * (x.ndim - 2)) for end in (f.low, f.high) if _is_end(end, x)]
    if len(ends) < 2 or not _is_variation(g, x) or not kernels.serves(x, *_tensors(bound, *ends), *tensors):
        return None
    form, (low, high) = (2 in g.axes, 1 in g.axes, getattr(g, "delta", 0.0)), (end.flatten(1) for end in ends)
    misfit, spacing = volume.MISFITS.index("slopes"), problem.operator.blocks[0].spacing
    return volume.Split(x, misfit, x, low, high, bound, spacing, *form)


WEIGHTS: dict[str, Callable[[Any], Scale]] = {
    "Squares": lambda term: term.curvature,
    "KullbackLeibler": lambda term: term.background,
    "Absolute": lambda term: term.term.weight,
}
"""What the compiled misfits have for each entry."""


def _tensors(*scales: Scale) -> list[Tensor]:
    return [scale for scale in scales if isinstance(scale, Tensor)]


def _is_end(end: Scale, y: Tensor) -> bool:
    """Whether the end of a box is one number for each channel, at most."""
    return not isinstance(end, Tensor) or end.ndim < 2 or (end.ndim == y.ndim and end[0, 0].numel() == 1)


FORMS = ((), (1,), (2,), (1, 2))
"""The axes along which compiled code takes lengths."""


def _is_variation(g: Any, y: Tensor) -> bool:
    """Whether a norm is one of differences along one to three axes, in a form that compiled code knows."""
    fits = 3 <= y.ndim <= 5 and g.axes in FORMS and not isinstance(getattr(g, "delta", 0.0), Tensor)
    return fits and _is_map(g.weight, y, g.axes)


def _is_map(bound: Scale, y: Tensor, axes: tuple[int, ...]) -> bool:
    """Whether bounds are numbers, per instance, or a map that has all pixels, and axes of 1 where lengths are taken."""
    if not isinstance(bound, Tensor) or bound.ndim < 2:
        return True
    channels, components = {1, y.shape[1]}, {1, y.ndim - 2}
    shape = bound.shape
    whole = bound.ndim == y.ndim + 1 and len(bound) == len(y) and shape[3:] == y.shape[2:]
    return whole and shape[1] in channels and shape[2] in components and all(shape[axis] == 1 for axis in axes)


def masked_of(problem: Any, *tensors: Tensor) -> saddle.Masked | None:
    """What the compiled loop of inpainting has to know of a problem; None where it does not serve it."""
    if not kernels.has("pdhg", problem.parts) or problem.f.y.ndim != 4:
        return None
    bound, f, operator, isotropic = _bound(problem), problem.f, problem.operator, "lengths" in problem.parts
    if isotropic and problem.regularisers[0].axes != (2,):
        return None
    if not loop.serves(f.y, *((bound,) if isinstance(bound, Tensor) else ()), *tensors):
        return None
    return saddle.Masked(f.y, f.mask, f.low, f.high, bound, f.scale, operator.norm, isotropic)


def _bound(problem: Composite) -> Scale:
    g: Any = problem.regularisers[0]
    weight: Scale = g.weight
    return weight


def _serves(x: Tensor, bound: Scale, *others: Tensor) -> bool:
    """Whether x are float32 images `(B, C, H, W)` on the CPU, and nothing is recorded."""
    return x.ndim == 4 and kernels.serves(x, *others, *((bound,) if isinstance(bound, Tensor) else ()))
