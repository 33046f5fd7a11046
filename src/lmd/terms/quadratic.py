"""Quadratic forms with a matrix, one for all instances or one for each."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from lmd.core.batching import Index, take_instances
from lmd.core.checks import check_batch, check_finite, check_floating, check_same_kind, shape_of
from lmd.errors import InputError
from lmd.terms.base import Scale, Term, filled, inner, per_instance, size_of


def times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Multiply each row `(B, n)` by a matrix `(n, m)`, or by the matrix of its instance `(B, n, m)`."""
    return rows @ matrix if matrix.ndim == 2 else (rows[:, None] @ matrix)[:, 0]


class Quadratic(Term):
    r"""h(z) = z'Pz / 2 + q'z + r; z, q `(B, n)`, P positive definite, `(n, n)` for all instances or `(B, n, n)`.

    h*(p) = (p - q)'P^{-1}(p - q) / 2 - r, finite everywhere. The proxes and h* use the eigenvalues and
    eigenvectors of P, computed once in float64. [Boyd and Vandenberghe 2004](https://web.stanford.edu/~boyd/cvxbook/),
    section 3.3.

    Args:
        P: `(n, n)` or `(B, n, n)`, symmetric and positive definite.
        q: `(B, n)`.
        r: A number, or one per instance `(B,)`.

    >>> term = Quadratic(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[-2.0, 0.0]]))
    >>> term.value(torch.tensor([[1.0, 1.0]])), term.tilted_minimiser(torch.zeros(1, 2))
    (tensor([-0.5000]), tensor([[1., -0.]]))
    """

    batched = ("q", "r")

    def __init__(self, P: Tensor, q: Tensor, r: Scale = 0.0) -> None:
        self.r = r if isinstance(r, Tensor) else float(r)
        self.P, self.q = check_finite("P", check_floating("P", P)), check_batch("q", q)
        check_same_kind("P", P, "q", q)
        if P.shape not in (q.shape[1:] * 2, (*q.shape, *q.shape[1:])):
            accepted = f"square matrices (n, n) or (B, n, n) to go with q {shape_of(q)}"
            raise InputError("P", f"shape {shape_of(P)}", accepted)
        if bool((P - P.mT).detach().abs().amax() > 8 * torch.finfo(P.dtype).eps * P.detach().abs().amax()):
            raise InputError("P", "a matrix that is not symmetric", "a symmetric one, such as (P + P') / 2")
        if not bool((self._range[0] > 0).all()):
            least = float(self._spectrum[0].min())
            accepted = "a positive definite matrix; a small multiple of the identity added to it makes it one"
            raise InputError("P", f"a smallest eigenvalue of {least:.3g}", accepted)

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """The ascending eigenvalues `(..., n)` and the eigenvectors of P, in float64."""
        values, vectors = torch.linalg.eigh(self.P.double())
        return values, vectors

    @cached_property
    def _range(self) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds on the eigenvalues: `()`, or `(B,)` if each instance has a matrix."""
        low, high = self._spectrum[0][..., 0], self._spectrum[0][..., -1]
        room = 4 * self.P.shape[-1] * torch.finfo(torch.float64).eps * high
        return low - room, high + room

    @cached_property
    def _inverse(self) -> Tensor:
        values, vectors = self._spectrum
        return ((vectors * (1 / values)[..., None, :]) @ vectors.mT).to(self.P)

    @property
    def quadratic(self) -> tuple[Tensor, Tensor]:
        return self.P, self.q

    conjugate_is_finite = True

    @property
    def strong_convexity(self) -> Scale | None:
        return _number(self._range[0].to(self.P.dtype))

    @property
    def smoothness(self) -> Scale | None:
        return _number(self._range[1].to(self.P.dtype))

    def value(self, z: Tensor) -> Tensor:
        return inner(z, 0.5 * times(z, self.P) + self.q) + self.r

    def subgradient(self, z: Tensor) -> Tensor:
        return times(z, self.P) + self.q

    def prox(self, z: Tensor, step: Scale) -> Tensor:
        """Return (I + step P)^{-1} (z - step q), computed in the basis of the eigenvectors."""
        values, vectors = (part.to(z.dtype) for part in self._spectrum)
        by = per_instance(step, z)
        turned = times(z - by * self.q, vectors)
        return times(turned / (1 + by * values), vectors.mT)

    def conjugate(self, p: Tensor) -> Tensor:
        return 0.5 * inner(p - self.q, times(p - self.q, self._inverse)) - self.r

    def conjugate_prox(self, p: Tensor, step: Scale) -> Tensor:
        """Return p - step (P + step I)^{-1} (p - q), which keeps the digits of p if the step is small."""
        values, vectors = (part.to(p.dtype) for part in self._spectrum)
        by = filled(step, p)
        turned = times(p - self.q, vectors) * (by / (values + by))
        return p - times(turned, vectors.mT)

    def tilted_minimiser(self, u: Tensor) -> Tensor:
        return -times(self.q + u, self._inverse)

    def residual(self, z: Tensor, p: Tensor) -> Tensor:
        """Return w'P^{-1}w / 2 with w = Pz + q - p."""
        w = self.subgradient(z) - p
        return (0.5 * inner(w, times(w, self._inverse))).clamp(min=0)

    def rounding(self, z: Tensor, p: Tensor, z_error: Tensor, p_error: Tensor, residual: Tensor) -> Tensor:
        """Bound the rounding of w'P^{-1}w / 2, where w = Pz + q - p and the eigenvalues of P are at least mu.

        For the computed s = P^{-1}w with ||w - Ps|| <= o, ||P^{-1}w|| <= ||s|| + o / mu. The error e of w, its rounding
        plus ||P|| z_error + p_error, adds ||P^{-1}w|| e + e^2 / 2 mu; w's / 2 adds ||P^{-1}w|| o / 2 and its rounding.
        """
        (least, most), eps = self._range, (z.shape[1] + 8) * torch.finfo(z.dtype).eps
        least, most = least.to(z.dtype), most.to(z.dtype)
        w = self.subgradient(z) - p
        s = times(w, self._inverse)
        off = size_of(w - times(s, self.P)) + eps * (size_of(times(s.abs(), self.P.abs())) + size_of(w))
        error = eps * (size_of(times(z.abs(), self.P.abs())) + size_of(self.q) + size_of(p))
        error = error + most * z_error + p_error
        reach = size_of(s) + off / least
        evaluation = eps * inner(w.abs(), s.abs())
        return reach * (off / 2 + error) + error.square() / (2 * least) + evaluation

    def value_rounding(self, z: Tensor) -> Tensor:
        """Bound the rounding of products of both signs, which may cancel."""
        sizes = inner(z.abs(), times(z.abs(), self.P.abs()) + self.q.abs())
        return (z.shape[1] + 8) * torch.finfo(z.dtype).eps * (sizes + filled(self.r, sizes).abs())

    def data(self) -> list[Tensor]:
        return [self.q] if self.P.ndim == 2 else [self.q, self.P]

    def select(self, index: Index) -> Quadratic:
        if self.P.ndim == 3:
            r = take_instances(self.r, index) if isinstance(self.r, Tensor) else self.r
            return Quadratic(take_instances(self.P, index), take_instances(self.q, index), r)
        return super().select(index)


def _number(constant: Tensor) -> Scale:
    return float(constant) if constant.ndim == 0 else constant
