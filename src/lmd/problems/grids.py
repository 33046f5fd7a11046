"""Composites with differences on a grid: scales of steps, constant points, circulant bounds, coarser grids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmd.terms.base import Scale, filled

if TYPE_CHECKING:
    from lmd.problems.composite import Block, Composite
from torch.nn.functional import avg_pool2d, avg_pool3d

MIN_SHARE = 0.01  # the least size of dual points far from their bounds, over the size that would balance the misfit
MAX_CONSTANT_GAUGE = 0.9
"""Entries of a dual point at most this share of their bound prove that the minimiser has no differences."""


def gradient_smoothness(problem: Composite) -> Scale | None:
    """Return a Lipschitz constant of `data_gradient`; None where one of its terms has none, or all are 0."""
    pairs = [(problem.f, 1.0), *((term, K.norm) for term, K, _ in problem.beside)]
    constants = [None if term.smoothness is None else term.smoothness * norm**2 for term, norm in pairs]
    known = [constant for constant in constants if constant is not None]
    total = sum(known)
    if len(known) < len(constants) or (isinstance(total, (int, float)) and total == 0):
        return None
    return total


def beside_spectrum(problem: Composite) -> Tensor | None:
    """Return the eigenvalues `(H, W // 2 + 1)` of a circulant bound on the Hessian of the terms beside the differences.

    f is left out. Known for c ||z - y||^2 behind operators with a `wrapped_spectrum`; None elsewhere, and where the
    differences have no such spectrum.
    """
    if problem.differences is None or problem.differences.wrapped_spectrum is None:
        return None
    terms = [(term.smoothness, term.strong_convexity, K.wrapped_spectrum) for term, K, _ in problem.beside]
    known = [most * s for most, least, s in terms if isinstance(most, float) and most == least and s is not None]
    return sum(known[1:], start=known[0]) if known and len(known) == len(terms) else None


def is_circulant(blocks: Iterable[Block]) -> bool:
    """Return whether the operators of these blocks are circulant, so that `beside_spectrum` is that of the Hessian."""
    return all(K.spectrum is not None for _, K, _ in blocks)


def step_scale(problem: Composite, x: Tensor) -> Tensor:
    """Return the range of x over the size of an entry of the dual points of the differences `(B,)`; NaN where unknown.

    Steps of primal-dual methods are multiples of it. The range is that of the domain of f, where it has ends. The size
    of an entry is that of the weight, unless it takes less to balance the misfit of a constant point: see `dual_size`.
    """
    if problem.differences is None:
        return x.new_full((len(x),), torch.nan)
    z = problem.differences(x)
    low, high = (problem.clip(torch.full_like(x[:, :1], end)).flatten(1) for end in (-torch.inf, torch.inf))
    widest = (high - low).mean(dim=1)
    extent = torch.where(torch.isfinite(widest), widest, x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1))
    size = filled(problem.variation.steepness(z) / z[0].numel() ** 0.5, extent)
    along = tuple(range(2, x.ndim))
    constant = problem.clip(x.mean(dim=along, keepdim=True).expand_as(x)) if along else x
    pull = balancing_size(problem.data_gradient(constant), x.shape[1:]).to(x)
    scale = torch.where(extent > 0, extent, torch.nan) / dual_size(size, pull)
    return torch.where(torch.isfinite(scale) & (scale > 0), scale, torch.nan)


def dual_size(weight: Tensor, pull: Tensor) -> Tensor:
    """Return about how large an entry of a dual point becomes `(B,)`, from its bound and the pull of the misfit.

    It is bounded by the weight, and does not grow past what balances the misfit of a constant point. Far below the
    bound dual points are smaller than this `pull`, which is rather too large; by how much is measured.
    """
    less = pull * (2 * pull / weight).pow(1.5).clamp(MIN_SHARE, 1)
    return torch.where((pull > 0) & (pull < weight), less, weight)


def balancing_size(u: Tensor, shape: Sequence[int]) -> Tensor:
    """Return about how large p with K'p = -u is for differences K of arrays of this shape `(B,)`; infinite if unknown.

    It is about as large as u times the length of the longest axis.
    """
    flat = u.flatten(1).double()
    size = (flat - flat.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt() * max(shape)
    return size.nan_to_num(nan=torch.inf)


def level(problem: Composite, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of x over each channel, and where the dual point says that no more is needed `(B,)`.

    Where all of it is well within the bound that the weight sets, the minimiser has no differences. Those that x
    still has cost the more, the larger the weight. The nearest datum replaces a mean where that is better.
    """
    if problem.differences is None or x.ndim < 3:
        return x, torch.zeros(len(x), dtype=torch.bool, device=x.device)
    within = problem.variation.gauge(problem.differences_part(dual)) < MAX_CONSTANT_GAUGE
    if not bool(within.any()):
        return x, within
    mean = x.double().mean(dim=tuple(range(2, x.ndim)), keepdim=True).to(x.dtype)
    constant = problem.clip(mean.expand_as(x).contiguous())
    datum = _nearest_datum(problem, constant)
    better = (problem.f.value(datum) < problem.f.value(constant)).reshape(-1, *[1] * (x.ndim - 1))
    return torch.where(better, datum, constant), within


def _nearest_datum(problem: Composite, constant: Tensor) -> Tensor:
    """Return, in each channel, the datum nearest to a constant that f pulls to it; the constant where there is none.

    Data that are all the same are met exactly, which means do not do: then the minimum is 0, and that is proven.
    """
    f = problem.f
    if not f.conjugate_is_finite:
        return constant
    y, pull = f.tilted_minimiser(torch.zeros_like(constant)).flatten(2), f.subgradient(constant).flatten(2)
    far = torch.where(pull != 0, (y - constant.flatten(2)).abs(), torch.inf)
    least, place = far.min(dim=2, keepdim=True)
    datum = torch.where(least.isfinite(), y.gather(2, place), constant.flatten(2)[:, :, :1])
    return problem.clip(datum.expand(-1, -1, y.shape[2]).reshape(constant.shape).contiguous())


MIN_SIDE = 16  # the shortest side, in pixels, of images that have a coarser grid


def average_squares(y: Tensor) -> Tensor | None:
    """Means over squares of 2 x 2 pixels, or those of them that there are; None where y `(B, C, H, W)` is too small.

    Among images that are constant on such squares, s ||x - y||^2 + b TV(x) is 4 (s ||x - m||^2 + b/2 TV(x)) and a
    constant, for the means m and one pixel for each square: anisotropic TV counts a difference between two squares
    twice, on both of their edges. In volumes cubes have 8 voxels and 4 edges to the next, so that it is b/2 as well.
    """
    pool = {4: avg_pool2d, 5: avg_pool3d}.get(y.ndim)
    return None if pool is None or min(y.shape[2:]) < MIN_SIDE else pool(y, 2, ceil_mode=True)


def refine_dual(p: Tensor, *size: int) -> Tensor:
    """The dual field `(B, C, axes, *size)` of the finer grid that begins where p of the coarser one is.

    x = y - K'p / 2s then has the means that the coarser solution has: across the edges between two squares flows 2p,
    along both of the edges, and inside of a square the mean of what flows in and out. Bounded by 2b where p is by b.
    """
    fields = p.new_empty(*p.shape[:3], *size)
    for along, flow in enumerate(p.unbind(dim=2), 2):
        for axis, length in enumerate(size, 2):
            fine = _between(flow, axis) if axis == along else flow.repeat_interleave(2, dim=axis)
            flow = fine.narrow(axis, 0, length)
        fields[:, :, along - 2] = flow
        fields.select(2, along - 2).narrow(along, size[along - 2] - 1, 1).zero_()  # across the border
    return fields


def _between(flow: Tensor, axis: int) -> Tensor:
    """2 p_i at the end of square i, and the mean of that and of the square before in its middle."""
    before = torch.cat([torch.zeros_like(flow.narrow(axis, 0, 1)), flow.narrow(axis, 0, flow.shape[axis] - 1)], axis)
    return torch.stack([before + flow, 2 * flow], axis + 1).flatten(axis, axis + 1)
