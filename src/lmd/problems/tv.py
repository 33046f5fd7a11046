"""Total variation denoising and inpainting of images: sections 5.2 and 5.3 of the paper, Figures 8 to 11, Table 1."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from lmd import kernels
from lmd.checks import check_batch, check_finite, check_positive, check_same_kind, shape_of
from lmd.copies import doubled
from lmd.errors import InputError
from lmd.operators.base import size_of
from lmd.operators.differences import Differences
from lmd.operators.mask import check_zero_one
from lmd.problems.composite import CompositeProblem, Scale, add_scaled, per_instance, sum_instances
from lmd.problems.optimum import Optimum
from lmd.problems.tv_optimum import optimum

T = TypeVar("T", bound="TVProblem")

EPSILON = torch.finfo(torch.float64).eps
"""The rounding of what is summed up in float64."""


def _clip(x: Tensor, low: Tensor, high: Tensor, out: Tensor | None = None) -> Tensor:
    """x within [low, high]; for bounds that broadcast torch's own clamp is ten times slower than these two passes."""
    return torch.minimum(torch.maximum(x, low, out=out), high, out=out)


def _recording(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


class TVProblem(CompositeProblem):
    r"""F(x) = s (data term + weight TV(x)), s = 1 or, in the `halved` form, 1/2; images x, y `(B, C, H, W)`.

    Anisotropic, as in the paper:  TV(x) = \sum |x_{i+1,j} - x_{i,j}| + |x_{i,j+1} - x_{i,j}|
    Isotropic:                     TV(x) = \sum ((x_{i+1,j} - x_{i,j})^2 + (x_{i,j+1} - x_{i,j})^2)^{1/2}

    over all pixels and channels, differences across the border left out; channels do not mix in either form. With K
    the forward differences and b = s weight, the dual points p `(B, C, 2, H, W)` are bounded by |p| <= b, entry by
    entry in the anisotropic form and in the length of the pair of each pixel in the isotropic one.

    `weight` is one number or one per image `(B,)`.
    """

    batched: ClassVar[tuple[str, ...]] = ("noisy", "weight")

    def __init__(self, noisy: Tensor, weight: float | Tensor, isotropic: bool, halved: bool) -> None:
        self.noisy = check_batch("noisy", noisy)
        if noisy.ndim != 4:
            raise InputError("noisy", f"shape {shape_of(noisy)}", "images (B, C, H, W)")
        self.weight = check_weight(weight, noisy)
        self.isotropic, self.halved = bool(isotropic), bool(halved)
        self.operator: Differences = Differences(noisy.shape[2:])
        self.differences = self.operator
        self._one_weight = one_number(self.weight)

    @property
    def scale(self) -> float:
        """s of the formula."""
        return 0.5 if self.halved else 1.0

    @property
    def bound(self) -> Scale:
        """b = s weight, which bounds the dual points: `(B,)`, or a number where the weights are one, which is faster.

        Where the derivative by the weight is recorded, it is the weight itself.
        """
        number = None if _recording(self.weight) else self._one_weight
        return self.scale * (self.weight if number is None else number)

    @property
    def data_smoothness(self) -> float:  # type: ignore[override]
        return 2 * self.scale

    @property
    def gradient_smoothness(self) -> float:
        """A Lipschitz constant of `data_gradient`."""
        return 2 * self.scale

    def check_start(self, x0: Tensor) -> Tensor:
        super().check_start(x0)
        if x0.shape != self.noisy.shape:
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape {shape_of(self.noisy)}, as the images have")
        return x0

    def start(self) -> Tensor:
        """The paper's starting points: the noisy images."""
        return self.noisy

    def value(self, x: Tensor) -> Tensor:
        if self.isotropic:
            return super().value(x)
        if kernels.serves(x, self.weight):
            return self.data_value(x) + self.bound * kernels.tv_sums(x, None, None, self.bound).length.to(x.dtype)
        # The same number as of the general formula, without the array Kx.
        down = sum_instances((x[..., 1:, :] - x[..., :-1, :]).abs())
        right = sum_instances((x[..., :, 1:] - x[..., :, :-1]).abs())
        return self.data_value(x) + self.bound * (down + right)

    def data_gradient(self, x: Tensor) -> Tensor:
        """The gradient of the data term."""
        raise NotImplementedError

    def clip(self, x: Tensor) -> Tensor:
        """The nearest point of the box the minimisers are known to lie in; x itself where there is none."""
        return x

    def filled(self, x: Tensor) -> Tensor:
        """x with a guess in place of pixels that nothing is known of; x itself where there are none."""
        return x

    def subgradient(self, x: Tensor) -> Tensor:
        """The gradient of the data term plus b K' sign(Kx), with sign(0) = 0; z / |z| for sign where isotropic."""
        gradient = self.data_gradient(x)
        if self.isotropic:
            z = self.operator(x)
            return gradient + self.operator.adjoint(per_instance(self.bound, z) * directions(z))
        if _recording(gradient) or _recording(self.weight):
            # The signs do not change near almost every x: they have no derivative to record.
            with torch.no_grad():
                signs = torch.zeros_like(x)
                _add_sign_adjoint(x, 1.0, signs)
            return gradient + per_instance(self.bound, signs) * signs
        _add_sign_adjoint(x, self.bound, gradient)
        return gradient

    def regulariser_value(self, z: Tensor) -> Tensor:
        return self.bound * sum_instances(_lengths(z) if self.isotropic else z.abs())

    def project_dual(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        bound = per_instance(self.bound, p)
        if self.isotropic:
            # Squares over b^2, so that a point inside is multiplied by exactly 1, and a zero has a derivative.
            excess = (p.square().sum(dim=2, keepdim=True) / bound**2).clamp(min=1)
            return torch.mul(p, excess.rsqrt(), out=out)
        if isinstance(bound, Tensor):
            return _clip(p, -bound, bound, out)
        return torch.clamp(p, -bound, bound, out=out)

    def project_differences(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """The nearest feasible p `(B, C, 2, H, W)`: all of the dual point here, a part of it where there is more."""
        return TVProblem.project_dual(self, p, out)

    def dual_from(self, p: Tensor, x: Tensor) -> Tensor:
        """The whole dual point that belongs to its part p `(B, C, 2, H, W)` and to x."""
        return p

    def regulariser_residual(self, z: Tensor, p: Tensor) -> Tensor:
        if self.isotropic:
            bound = per_instance(self.bound, z[:, :, 0])
            return sum_instances((bound * _lengths(z) - (p * z).sum(dim=2)).clamp_(min=0))
        return sum_instances(z.abs().mul_(per_instance(self.bound, z)).addcmul_(p, z, value=-1))

    def optima(self) -> list[Optimum]:
        """The certified optimum of each instance, in float64, solved once for each content and then remembered."""
        whole: TVProblem = doubled(self, "cpu")
        return [optimum(whole.select(i)) for i in range(len(self.noisy))]

    def minimiser(self) -> Tensor:
        """The true minimisers `(B, C, H, W)`: their duality gap is certified to 1e-6 relative or better."""
        return torch.stack([found.x for found in self.optima()]).to(self.noisy)

    def minimum(self) -> Tensor:
        """The true minima `(B,)`, each between the value of the certified minimiser and its lower bound."""
        return torch.tensor([found.value for found in self.optima()], dtype=torch.float64).to(self.noisy)

    def double(self: T) -> T:
        return doubled(self)

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """That of the regulariser: differences and lengths are right to a few eps relative to themselves."""
        return 32 * torch.finfo(x.dtype).eps * TVProblem.regulariser_value(self, self.differences(x))

    def description(self) -> dict[str, Any]:
        """What a cached optimum depends on besides the numbers in `batched`."""
        return {"type": type(self).__name__, "isotropic": self.isotropic, "scale": self.scale}


class TVDenoising(TVProblem):
    """F(x) = ||x - y||^2 + weight TV(x), or half of it; y = `noisy` `(B, C, H, W)`. See `TVProblem` for TV.

    >>> problem = TVDenoising(torch.tensor([[[[0.0, 1.0]]]]), weight=0.5)
    >>> x, p = torch.tensor([[[[0.25, 0.75]]]]), torch.tensor([[[[[0.0, 0.0]], [[0.5, 0.0]]]]])
    >>> problem.value(x), problem.gap(x, p)  # the gap proves that x is the minimiser
    (tensor([0.3750]), tensor([0.]))
    """

    def __init__(
        self, noisy: Tensor, weight: float | Tensor = 0.3, isotropic: bool = False, halved: bool = False
    ) -> None:
        super().__init__(noisy, weight, isotropic, halved)

    @property
    def data_strong_convexity(self) -> float:  # type: ignore[override]
        return 2 * self.scale

    @property
    def parts(self) -> tuple[str, ...]:
        return ("squares", "lengths" if self.isotropic else "l1", "differences")

    @property
    def strong_convexity(self) -> Tensor:
        return self.noisy.new_tensor(2 * self.scale)

    def value(self, x: Tensor) -> Tensor:
        if self.isotropic or not kernels.serves(x, self.noisy, self.weight):
            return super().value(x)
        return self._value_of(kernels.tv_sums(x, None, self.noisy, self.bound)).to(x.dtype)

    def _value_of(self, sums: kernels.TVSums) -> Tensor:
        return self.scale * sums.misfit + self.bound * sums.length

    def gap(self, x: Tensor, dual: Tensor) -> Tensor:
        if self.isotropic or not kernels.serves(x, self.noisy, self.weight, dual):
            return super().gap(x, dual)
        sums = kernels.tv_sums(x, dual, self.noisy, self.bound, 0.5 / self.scale)
        return (sums.slack + self.scale * sums.square).to(x.dtype)

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        if self.isotropic or not kernels.serves(x, self.noisy, self.weight, dual):
            return super().certified_gap(x, dual)
        sums = kernels.tv_sums(x, dual, self.noisy, self.bound, 0.5 / self.scale)
        value, gap = self._value_of(sums), sums.slack + self.scale * sums.square
        rounding = self._rounding(EPSILON, self.bound * sums.length, sums.misfit.sqrt(), sums.dual.sqrt(), gap)
        return value, gap + rounding + self.rounding_of_sums(x, dual, EPSILON, value, gap)

    def _rounding(self, eps: float, tv: Tensor, off: Tensor, dual: Tensor, gap: Tensor) -> Tensor:
        """Of a gap, from weight TV(x), ||x - y|| and ||p||: docs/guarantees.md.

        The misfit is that of x - y + K'p / 2s, each part of which is right to a few eps relative to its own size.
        """
        off = self.operator.roundings * eps * (off + self.operator.norm / (2 * self.scale) * dual)
        return 32 * eps * tv + 2 * (self.scale * gap).sqrt() * off + self.scale * off.square()

    def data_value(self, x: Tensor) -> Tensor:
        return self.scale * sum_instances((x - self.noisy).square())

    def data_gradient(self, x: Tensor) -> Tensor:
        return (2 * self.scale) * (x - self.noisy)

    def data_prox(self, x: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        pull = 2 * self.scale * per_instance(step, x)
        return torch.lerp(x, self.noisy, pull / (1 + pull), out=out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return torch.add(self.noisy, u, alpha=-0.5 / self.scale, out=out)

    def tilted_minimum(self, u: Tensor) -> Tensor:
        return sum_instances(u * torch.add(self.noisy, u, alpha=-0.25 / self.scale))

    def data_residual(self, x: Tensor, u: Tensor) -> Tensor:
        return self.scale * sum_instances((x - self.noisy).add(u, alpha=0.5 / self.scale).square())

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        tv = self.regulariser_value(self.operator(x))
        return self._rounding(torch.finfo(x.dtype).eps, tv, size_of(x - self.noisy), size_of(p), gap)


class TVInpainting(TVProblem):
    r"""F(x) = ||Z (x - y)||^2 + weight TV(x), or half of it; y = `noisy` `(B, C, H, W)`. See `TVProblem` for TV.

    Z is the `mask`, 1 where a pixel is kept and 0 where it is lost: `(H, W)`, `(B, 1, H, W)` or `(B, C, H, W)`, with
    at least one kept pixel in each image and channel. What y holds at lost pixels does not matter to F.

    *The box.* Let [low, high] be the range of y over the kept pixels of one image and channel. Clipping x to it moves
    no kept pixel away from its y, which is inside, and lengthens no difference, as |clip(a) - clip(b)| <= |a - b|; so
    F(clip(x)) <= F(x), in both forms of TV. Hence the minimum of F over the box is its minimum, and the box may be
    made part of the data term. (Every minimiser is in the box: if x is outside somewhere, either a kept pixel is, and
    clipping brings it nearer to y, or some step between neighbours from a kept pixel to one outside gets shorter;
    both lower F.) Without the box the dual would be -infinity unless K'p = 0 at every lost pixel, which no iterate
    fulfils. With it the tilted minimum is finite for every p: a lost pixel goes to the end of the box that u sends it
    to. So `gap` is finite and holds for every x, inside the box or not, and every p; `data_prox` clips.
    """

    batched = ("noisy", "weight", "mask", "low", "high")

    def __init__(
        self,
        noisy: Tensor,
        mask: Tensor,
        weight: float | Tensor = 0.3,
        isotropic: bool = False,
        halved: bool = False,
    ) -> None:
        super().__init__(noisy, weight, isotropic, halved)
        self.mask = _check_mask(mask, noisy)
        kept = self.mask.expand_as(noisy) > 0
        if bool((lost := ~kept.flatten(2).any(dim=2)).any()):
            where = tuple(lost.nonzero()[0].tolist())
            raise InputError("mask", f"no kept pixel in image and channel {where}", "at least one in each")
        self.low = noisy.masked_fill(~kept, torch.inf).flatten(2).amin(dim=2)[..., None, None]
        self.high = noisy.masked_fill(~kept, -torch.inf).flatten(2).amax(dim=2)[..., None, None]

    @property
    def parts(self) -> tuple[str, ...]:
        return ("kept squares", "lengths" if self.isotropic else "l1", "differences")

    def data_value(self, x: Tensor) -> Tensor:
        """||Z (x - y)||^2, scaled; the box is left out, so that it is finite everywhere."""
        return self.scale * sum_instances((self.mask * (x - self.noisy)).square())

    def data_gradient(self, x: Tensor) -> Tensor:
        return (x - self.noisy) * (2 * self.scale * self.mask)

    def clip(self, x: Tensor) -> Tensor:
        return _clip(x, self.low, self.high)

    def filled(self, x: Tensor) -> Tensor:
        """x with its lost pixels replaced by a weighted mean of the kept ones around, 5 x 5, where there are any."""
        taps = torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0], dtype=x.dtype, device=x.device)
        kernel = (taps[:, None] * taps[None, :])[None, None]
        total, share = (kernels.convolve(z.flatten(0, 1)[:, None], kernel) for z in (self.mask * self.noisy, self.mask))
        total, share = total.view_as(x), share.view_as(self.mask)
        fill = ((self.mask == 0) & (share > 0)).to(x.dtype)
        return x * (1 - fill) + total * (fill / share.clamp(min=1))  # `where` does not broadcast fast

    def data_prox(self, x: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        pull = 2 * self.scale * per_instance(step, x)
        return _clip(torch.lerp(x, self.noisy, self.mask * (pull / (1 + pull)), out=out), self.low, self.high, out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        inside = _clip(self._free(u), self.low, self.high)
        end = torch.where(u > 0, self.low, self.high)
        return torch.where(self.mask > 0, inside, end, out=out)

    def _free(self, u: Tensor) -> Tensor:
        """What kept pixels go to without the box."""
        return torch.add(self.noisy, u, alpha=-0.5 / self.scale)

    def data_residual(self, x: Tensor, u: Tensor) -> Tensor:
        """Relative to y all along: where an image is far from 0, pixels themselves have too few digits."""
        away, low, high = x - self.noisy, self.low - self.noisy, self.high - self.noisy
        free = u * (-0.5 / self.scale)
        nearest = _clip(free, low, high)
        slope = 2 * self.scale * (nearest - free)  # of the tilted data term at its minimiser: 0 inside the box
        past = away - nearest
        kept = past * (slope + self.scale * past)
        lost = u * (x - torch.where(u > 0, self.low, self.high))
        return sum_instances(torch.where(self.mask > 0, kept, lost)).clamp(min=0)

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """Pixels and their minimisers are no further apart than x is from the ends of the box."""
        eps, u = torch.finfo(x.dtype).eps, self.operator.adjoint(p)
        reach = torch.maximum((x - self.low).abs(), (x - self.high).abs())
        sums = 64 * eps * sum_instances(reach * (self.scale * reach + u.abs()))
        pull = self.operator.roundings * self.operator.norm * eps * size_of(p)
        return super().gap_rounding(x, p, value, gap) + sums + size_of(reach) * pull


def _check_mask(mask: Tensor, noisy: Tensor) -> Tensor:
    """The mask as `(B, 1, H, W)` or `(B, C, H, W)` in the dtype of the images."""
    batch, channels, *size = noisy.shape
    accepted = [(*size,), (batch, 1, *size), (batch, channels, *size)]
    if check_zero_one("mask", mask).shape not in accepted:
        raise InputError("mask", f"shape {shape_of(mask)}", f"shape {' or '.join(map(str, dict.fromkeys(accepted)))}")
    return mask.to(noisy).expand(batch, 1, *size) if mask.ndim == 2 else mask.to(noisy)


def check_weight(weight: float | Tensor, noisy: Tensor) -> Tensor:
    """The weight as one number per image `(B,)`, all positive."""
    if not isinstance(weight, Tensor):
        return noisy.new_full((len(noisy),), check_positive("weight", weight))
    if weight.shape not in ((), (len(noisy),)):
        raise InputError("weight", f"shape {shape_of(weight)}", f"one number, or one per image ({len(noisy)},)")
    check_same_kind("weight", weight, "noisy", noisy)
    if not bool((check_finite("weight", weight) > 0).all()):
        raise InputError("weight", f"{float(weight.min()):g}", "positive numbers")
    return weight.expand(len(noisy)).clone()


def one_number(weight: Tensor) -> float | None:
    """The number that all weights `(B,)` are, where they are one."""
    first = weight.detach()[0]
    return float(first) if bool((weight == first).all()) else None


def _lengths(z: Tensor) -> Tensor:
    """The length of the pair of each pixel: `(B, C, 2, H, W)` to `(B, C, H, W)`; its derivative at 0 is 0."""
    squares = z.square().sum(dim=2)
    if not _recording(z):
        return squares.sqrt_()
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1).sqrt(), 0)


def directions(z: Tensor) -> Tensor:
    """z / |z| for the pair of each pixel `(B, C, 2, H, W)`, and 0 where z is 0."""
    squares = z.square().sum(dim=2, keepdim=True)
    positive = squares > 0
    return z * torch.where(positive, torch.where(positive, squares, 1).rsqrt(), 0)


def _add_sign_adjoint(x: Tensor, bound: Scale, out: Tensor) -> None:
    """Add b K' sign(Kx) to `out`, axis by axis, without the array Kx."""
    for axis in (2, 3):
        length = x.shape[axis] - 1
        signs = (x.narrow(axis, 1, length) - x.narrow(axis, 0, length)).sign_()
        ahead, here = out.narrow(axis, 1, length), out.narrow(axis, 0, length)
        add_scaled(ahead, bound, signs, out=ahead)
        add_scaled(here, -bound, signs, out=here)
