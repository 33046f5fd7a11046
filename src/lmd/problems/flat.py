"""Points drawn flat where their dual points say that the minimiser is: the mean of x on each region without an edge.

At the minimiser of s ||x - y||^2 + b TV(x) neighbours are equal wherever their dual point is within its bound. Of the
dual point p of an iteration take the regions that are connected by such pairs. The edges between regions have p at the
bound, and those inside cancel in the sum of K'p over a region, so that the mean of x(p) over it is the mean of y plus
what its border pulls: the minimiser itself, as soon as the regions are right. Its total variation has nothing of the
unrest that is left in x(p), which is most of the gap: a proven gap of 1e-4 becomes 1e-5 or less. The gap of x = x(p) is
the slack b |Kx| - <p, Kx>, pixel by pixel, and where the edges between regions have none it falls apart into regions:
each is drawn flat by itself where that lowers it.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEAR = 1 - 1e-5
"""Squared lengths of isotropic dual points count as within the bound up to this share of its square, for rounding."""


def within_bound(dual: Tensor, bound: float | Tensor, isotropic: bool) -> Tensor:
    """Whether there is no edge between each pixel and the next along each axis, as `dual` `(B, C, axes, *size)`."""
    limit = bound if isinstance(bound, float) else bound.reshape(-1, *[1] * (dual.ndim - 1))
    if isotropic:
        return (dual.square().sum(dim=2, keepdim=True) < NEAR * limit**2).expand_as(dual)
    return dual.abs() < limit


def drawn_flat(
    x: Tensor, without_edge: Tensor, slack: Tensor, curvature: float, origin: float | Tensor = 0.0
) -> Tensor:
    """The means of x `(B, C, *size)` over the regions that are connected by pairs of neighbours without an edge.

    A region is drawn flat where that takes more from the gap of x = x(p), by the slack between its pixels, than it
    adds, by the misfit to x(p): where s times the squared distances of its x from their mean are at most its slack.
    Two regions that were taken for one are left alone by that.

    Args:
        x: `(B, C, *size)`.
        without_edge: Whether a pixel and the next one along each axis belong together, `(B, C, axes, *size)`; what is
            said of pixels without a next one does not count.
        slack: b |Kx| - <p, Kx> of each pixel `(B, C, *size)`.
        curvature: s.
        origin: What x is counted from, so that squares of what is left are small: such as a pixel of each channel
            `(B, C, 1, ...)`. Only rounding depends on it.

    >>> x, without_edge = torch.tensor([[[1.0, 3.0, 8.0]]]), torch.tensor([[[[True, False, True]]]])
    >>> drawn_flat(x, without_edge, slack=torch.tensor([[[2.0, 0.0, 0.0]]]), curvature=1.0)
    tensor([[[2., 2., 8.]]])
    >>> drawn_flat(x, without_edge, slack=torch.tensor([[[1.9, 0.0, 0.0]]]), curvature=1.0)
    tensor([[[1., 3., 8.]]])
    """
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    pairs = []
    for axis in range(2, x.ndim):
        length = x.shape[axis] - 1
        together = without_edge[:, :, axis - 2].narrow(axis, 0, length)
        pairs += [torch.stack([places.narrow(axis, begin, length)[together] for begin in (0, 1)])]
    labels = _components(x.numel(), torch.cat(pairs, dim=1))
    exact = (x.double() - origin).flatten()
    sizes = torch.bincount(labels, minlength=x.numel()).clamp(min=1)
    means = _sums(exact, labels) / sizes
    gains = _sums(slack.double().flatten() - curvature * exact.square(), labels) + curvature * sizes * means.square()
    flat = means[labels].reshape(x.shape) + origin
    return torch.where((gains[labels] >= 0).reshape(x.shape), flat.to(x.dtype), x)


def _sums(numbers: Tensor, labels: Tensor) -> Tensor:
    """The sum over each label, where that label is."""
    return torch.zeros_like(numbers).index_add_(0, labels, numbers)


def _components(count: int, pairs: Tensor) -> Tensor:
    """The smallest number of the connected component of each of 0, ..., count - 1, joined by `pairs` `(2, n)`.

    Roots of pairs are hooked to the smaller one and paths halved until nothing changes, a logarithmic number of times
    ([Shiloach and Vishkin 1982](https://doi.org/10.1016/0196-6774(82)90008-6)).
    """
    parents = torch.arange(count, device=pairs.device)
    while True:
        ends = parents[pairs]
        low, high = ends.amin(dim=0), ends.amax(dim=0)
        if bool((low == high).all()):
            return parents
        parents = parents.scatter_reduce(0, high, low, "amin")
        while bool((parents != (shorter := parents[parents])).any()):
            parents = shorter
