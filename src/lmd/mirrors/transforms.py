"""Maps that are orthogonal by construction, in whose coefficients a mirror can be separable."""

from __future__ import annotations

import abc
import functools
import math
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.checks import check_count, shape_of
from lmd.core.config import Configurable
from lmd.errors import InputError


class Transform(nn.Module, Configurable, abc.ABC):
    """An orthogonal map Q of each instance: x `(B, ...)` to coefficients of the same shape, each of one of `kinds`."""

    kinds: int

    @abc.abstractmethod
    def check(self, argument: str, x: Tensor) -> Tensor:
        """Return `x` if the transform fits its shape."""

    @abc.abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Qx, same shape as x."""

    @abc.abstractmethod
    def inverse(self, coefficients: Tensor) -> Tensor:
        """Q'c, same shape as c."""

    @abc.abstractmethod
    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        """Numbers by kind `(kinds, J)` for each coefficient of an instance, `(..., J)`: its kind's, or a mean of some.

        Without the first dimension of `like`, and broadcasting against the others.
        """


class Rotation(Transform):
    r"""A learned orthogonal map of n numbers, of each run of n numbers in x `(B, m n)`; the identity to begin with.

    Q = H_1 ... H_r with reflections H_i = I - 2 v_i v_i' / v_i'v_i, the rows of `vectors` `(r, n)` being v_i. It is
    I - V' T^{-1} V, with T upper triangular: v_i'v_j above the diagonal and half of v_i'v_i on it
    ([Joffrain et al. 2006](https://doi.org/10.1145/1141885.1141886)). n reflections give every orthogonal map; they
    begin in pairs that cancel, but for one where their number is odd. Without reflections it is the identity for good.

    Args:
        size: n.
        reflections: r; None is n, or n - 1 where n is odd.
        seed: What the reflections begin with is drawn from it.
    """

    def __init__(self, size: int, reflections: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.kinds = self.size = check_count("size", size)
        count = 2 * (size // 2) if reflections is None else check_count("reflections", reflections, least=0)
        self.seed = seed
        pairs = torch.randn((count + 1) // 2, size, generator=torch.Generator().manual_seed(seed))
        start = nn.functional.normalize(pairs).repeat_interleave(2, dim=0)[:count]
        self.vectors = nn.Parameter(start, requires_grad=count > 0)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> Rotation:
        """The rotation Q of an orthogonal matrix `(n, n)`, up to the signs of its rows, by Householder's QR.

        Signs do not matter to a separable mirror with odd curves.
        """
        packed, _ = torch.geqrf(matrix.T)
        rotation = cls(len(matrix), len(matrix)).to(matrix)
        identity = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
        with torch.no_grad():
            rotation.vectors.copy_((packed.tril(-1) + identity).T.flip(0))
        return rotation

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "reflections": len(self.vectors), "seed": self.seed}

    @property
    def matrix(self) -> Tensor:
        """Q `(n, n)`."""
        V = nn.functional.normalize(self.vectors)
        inner = V @ V.T
        upper = inner.triu(1) + 0.5 * torch.diag(inner.diagonal())
        identity = torch.eye(self.size, dtype=V.dtype, device=V.device)
        return identity - V.T @ torch.linalg.solve_triangular(upper, V, upper=True)

    def check(self, argument: str, x: Tensor) -> Tensor:
        if x.ndim != 2 or x.shape[1] % self.size:
            raise InputError(argument, f"shape {shape_of(x)}", f"shape (B, n) with n a multiple of {self.size}")
        return x

    def forward(self, x: Tensor) -> Tensor:
        return x if not len(self.vectors) else (x.reshape(len(x), -1, self.size) @ self.matrix.T).flatten(1)

    def inverse(self, coefficients: Tensor) -> Tensor:
        if not len(self.vectors):
            return coefficients
        return (coefficients.reshape(len(coefficients), -1, self.size) @ self.matrix).flatten(1)

    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        return rows.repeat(like.shape[1] // self.size, 1)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Keep the vectors at length 1, which changes nothing else."""
        self.vectors.copy_(nn.functional.normalize(self.vectors))


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def cosines(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    r"""The orthogonal cosine transform `(n, n)`: \sqrt{2/n} cos(pi k (i + 1/2) / n), the first row \sqrt{1/n}.

    Its rows are the eigenvectors of differences across n entries, K'K, with eigenvalues 2 - 2 cos(pi k / n).
    """
    k = torch.arange(size, dtype=torch.float64, device=device)
    matrix = torch.cos(math.pi / size * k[:, None] * (k[None, :] + 0.5)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix.to(dtype)


def _check_image(argument: str, x: Tensor, least: int) -> Tensor:
    if x.ndim != 4 or min(x.shape[2:]) < least:
        raise InputError(argument, f"shape {shape_of(x)}", f"images (B, C, H, W), H and W at least {least}")
    return x


class Cosine(Transform):
    r"""The cosine transform of whole images `(B, C, H, W)`, of any size.

    The kind of a coefficient is the length of its frequency, r = \sqrt{(e_k + e_l) / 8} in [0, 1], with e_k and e_l the
    eigenvalues of differences down and across: numbers by kind are the values at r = 0, 1 / (kinds - 1), ..., 1 of a
    piecewise linear function of r. So they serve every size; and as r does not change when an image is flipped or
    turned by 90 degrees, a separable mirror with odd curves maps such images to flipped and turned ones.

    Args:
        kinds: Numbers from frequency 0 to the highest, at least 2.
    """

    def __init__(self, kinds: int = 10) -> None:
        super().__init__()
        self.kinds = check_count("kinds", kinds, least=2)

    def config(self) -> dict[str, Any]:
        return {"kinds": self.kinds}

    def check(self, argument: str, x: Tensor) -> Tensor:
        return _check_image(argument, x, 1)

    def forward(self, x: Tensor) -> Tensor:
        down, across = (cosines(size, x.dtype, x.device) for size in x.shape[2:])
        return down @ x @ across.T

    def inverse(self, coefficients: Tensor) -> Tensor:
        down, across = (cosines(size, coefficients.dtype, coefficients.device) for size in coefficients.shape[2:])
        return down.T @ coefficients @ across

    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        place = (self.kinds - 1) * frequencies(like.shape[2], like.shape[3], rows.dtype, rows.device)
        below = place.long().clamp(max=self.kinds - 2)
        return torch.lerp(rows[below], rows[below + 1], (place - below)[..., None])


@functools.lru_cache(maxsize=32)
@torch.inference_mode(False)
def frequencies(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """r of `Cosine` for each coefficient, `(H, W)`."""
    down, across = (
        2 - 2 * torch.cos(math.pi / size * torch.arange(size, dtype=torch.float64, device=device))
        for size in (height, width)
    )
    return ((down[:, None] + across[None, :]) / 8).sqrt().to(dtype)


class BlockCosine(Transform):
    """The cosine transform of each block of `size` x `size` pixels; blocks begin `shift` pixels from the top and left.

    Pixels that no whole block covers stay as they are. With `reflections`, a learned `Rotation` of the size^2
    coefficients of a block follows, and each is a kind of its own; without, coefficients k, l and l, k are of one kind,
    so that flipped and turned images give flipped and turned answers, where blocks cover the image.

    Args:
        size: The side of a block in pixels.
        shift: Where blocks begin, less than size.
        reflections: Of the learned rotation that follows; 0 is none.
    """

    def __init__(self, size: int = 8, shift: int = 0, reflections: int = 0) -> None:
        super().__init__()
        self.size, self.shift = check_count("size", size), check_count("shift", shift, least=0)
        if self.shift >= self.size:
            raise InputError("shift", shift, f"less than the size of a block, {size}")
        self.rotation = Rotation(size * size, reflections)
        first, second = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        low, high = torch.minimum(first, second), torch.maximum(first, second)
        kind = high * (high + 1) // 2 + low if not reflections else first * size + second
        self.register_buffer("kind", kind, persistent=False)
        self.kinds = int(kind.max()) + 1

    kind: Tensor

    def config(self) -> dict[str, Any]:
        return {"size": self.size, "shift": self.shift, "reflections": len(self.rotation.vectors)}

    def check(self, argument: str, x: Tensor) -> Tensor:
        return _check_image(argument, x, self.size + self.shift)

    def _covered(self, x: Tensor) -> Tensor:
        """The part of an image that whole blocks cover."""
        for axis in (2, 3):
            x = x.narrow(axis, self.shift, (x.shape[axis] - self.shift) // self.size * self.size)
        return x

    def _blockwise(self, x: Tensor, forward: bool) -> Tensor:
        answer, part, Q = x.clone(), self._covered(x), cosines(self.size, x.dtype, x.device)
        down, across = (n // self.size for n in part.shape[2:])
        blocks = part.reshape(*part.shape[:2], down, self.size, across, self.size).transpose(3, 4)
        if forward:
            blocks = self.rotation((Q @ blocks @ Q.T).reshape(-1, self.size**2)).view_as(blocks)
        else:
            blocks = Q.T @ self.rotation.inverse(blocks.reshape(-1, self.size**2)).view_as(blocks) @ Q
        self._covered(answer).copy_(blocks.transpose(3, 4).reshape_as(part))
        return answer

    def forward(self, x: Tensor) -> Tensor:
        return self._blockwise(x, True)

    def inverse(self, coefficients: Tensor) -> Tensor:
        return self._blockwise(coefficients, False)

    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        down, across = ((torch.arange(n, device=rows.device) - self.shift) % self.size for n in like.shape[2:])
        return rows[self.kind[down[:, None], across[None, :]]]


class Haar(Transform):
    """Wavelets of images `(B, C, H, W)` on `levels` scales; each scale and direction is a kind, as is the mean.

    [Haar 1910](https://doi.org/10.1007/BF01456326). On each level 2 x 2 pixels become their mean and three details,
    in place; H and W must be multiples of 2^levels. Details down and across are of one kind. With `turns`, pairs of
    neighbours, one of each pair before and one after, are then turned by learned angles `(levels, turns)`, 0 to begin
    with: a lattice of rotations, the orthogonal form of lifting, which reaches every orthogonal wavelet of 2 turns + 2
    taps ([Vaidyanathan and Hoang 1988](https://doi.org/10.1109/29.1491)). Flipped and turned images give flipped and
    turned answers without turns alone.

    Args:
        levels: How many scales there are.
        turns: Learned turns per level; 0 is none.
    """

    def __init__(self, levels: int = 3, turns: int = 0) -> None:
        super().__init__()
        self.levels, turns = check_count("levels", levels), check_count("turns", turns, least=0)
        self.kinds = 2 * levels + 1
        self.angles = nn.Parameter(torch.zeros(levels, turns), requires_grad=turns > 0)

    def config(self) -> dict[str, Any]:
        return {"levels": self.levels, "turns": self.angles.shape[1]}

    def check(self, argument: str, x: Tensor) -> Tensor:
        if any(n % 2**self.levels for n in _check_image(argument, x, 1).shape[2:]):
            accepted = f"images whose sides are multiples of {2**self.levels}, for {self.levels} levels"
            raise InputError(argument, f"shape {shape_of(x)}", accepted)
        return x

    def _stages(self, level: int) -> list[tuple[int, Tensor]]:
        """Where the pairs of each stage of a level begin, and their angles."""
        whole = torch.full_like(self.angles[level, :0].sum(), math.pi / 4)
        return [(place % 2, angle) for place, angle in enumerate([whole, *self.angles[level]])]

    def forward(self, x: Tensor) -> Tensor:
        answer = x.clone()
        for level in range(self.levels):
            means = answer[..., :: 2**level, :: 2**level].clone()
            for first, angle in self._stages(level):
                means = _turned(_turned(means, 2, first, angle), 3, first, angle)
            answer[..., :: 2**level, :: 2**level] = means
        return answer

    def inverse(self, coefficients: Tensor) -> Tensor:
        answer = coefficients.clone()
        for level in reversed(range(self.levels)):
            means = answer[..., :: 2**level, :: 2**level].clone()
            for first, angle in reversed(self._stages(level)):
                means = _turned(_turned(means, 2, first, -angle), 3, first, -angle)
            answer[..., :: 2**level, :: 2**level] = means
        return answer

    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        kind = torch.full(like.shape[2:], 2 * self.levels, dtype=torch.long, device=rows.device)
        for level in range(self.levels):
            kind[2**level :: 2 ** (level + 1), :: 2**level] = 2 * level
            kind[:: 2**level, 2**level :: 2 ** (level + 1)] = 2 * level
            kind[2**level :: 2 ** (level + 1), 2**level :: 2 ** (level + 1)] = 2 * level + 1
        return rows[kind]


def _turned(x: Tensor, axis: int, first: int, angle: Tensor) -> Tensor:
    """x with the pairs of neighbours along an axis, from place `first` on, turned by an angle."""
    count = (x.shape[axis] - first) // 2
    inside = x.narrow(axis, first, 2 * count)
    one, other = inside.reshape(*x.shape[:axis], count, 2, *x.shape[axis + 1 :]).unbind(dim=axis + 1)
    cosine, sine = angle.cos(), angle.sin()
    pairs = torch.stack([cosine * one + sine * other, cosine * other - sine * one], dim=axis + 1)
    ends = x.narrow(axis, 0, first), x.narrow(axis, first + 2 * count, x.shape[axis] - first - 2 * count)
    return torch.cat([ends[0], pairs.flatten(axis, axis + 1), ends[1]], dim=axis)


class Chain(Transform):
    """One transform after another: Q = Q_2 Q_1, with the kinds of the second.

    Blocks followed by blocks that are shifted against them overlap: `Chain(BlockCosine(8, 0, 16),
    BlockCosine(8, 4, 16))` is a lapped transform, a learned paraunitary filter bank
    ([Malvar and Staelin 1989](https://doi.org/10.1109/29.17536)).

    Args:
        first: Q_1, applied first.
        second: Q_2.
    """

    def __init__(self, first: Transform, second: Transform) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.kinds = second.kinds

    def config(self) -> dict[str, Any]:
        return {"first": self.first, "second": self.second}

    def check(self, argument: str, x: Tensor) -> Tensor:
        return self.second.check(argument, self.first.check(argument, x))

    def forward(self, x: Tensor) -> Tensor:
        coefficients: Tensor = self.second(self.first(x))
        return coefficients

    def inverse(self, coefficients: Tensor) -> Tensor:
        return self.first.inverse(self.second.inverse(coefficients))

    def spread(self, rows: Tensor, like: Tensor) -> Tensor:
        return self.second.spread(rows, like)
