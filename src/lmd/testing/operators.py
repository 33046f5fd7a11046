"""The conformance suite: what every operator promises, as tests that a test class inherits. Needs pytest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from lmd.operators.base import LinearOperator
from lmd.terms.base import inner, size_of
from lmd.testing.cases import at_most, default_dtype, each, each_batch, each_dtype

POWER_ITERATIONS = 300
OFFSETS = (0.0, 1e4)  # added to the numbers that show what rounding does

Map = Callable[[Tensor], Tensor]


class OperatorConformance:
    """Inherit this, say how to make the operator and what it maps, and run pytest.

        class TestMyOperator(OperatorConformance):
            def make_operator(self, batch, dtype):
                return MyOperator(size=3)

            def points(self, batch, dtype, generator):
                return torch.randn(batch, 3, dtype=dtype, generator=generator)

    An operator that holds a tensor for each instance should have different ones, the same each time. The sizes should
    be small: derivatives are checked entry by entry.
    """

    norm_is_tight: bool = True  # whether the norm is at most 5% above the maximum of ||Kx|| / ||x||

    def make_operator(self, batch: int, dtype: torch.dtype) -> LinearOperator:
        """Return the operator under test, for this many instances of this dtype."""
        raise NotImplementedError("say which operator to test")

    def points(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random x `(batch, ...)`."""
        raise NotImplementedError("say what the operator maps")

    # The map and its adjoint.

    @each_batch
    def test_the_adjoint_is_one(self, batch: int) -> None:
        operator, x, z = self._start(batch, torch.float64)
        left, right = inner(operator(x), z), inner(x, operator.adjoint(z))
        at_most((left - right).abs(), 1e-12 * operator.norm * size_of(x) * size_of(z), "<Kx, z> - <x, K'z>")

    @each_batch
    def test_both_are_linear(self, batch: int) -> None:
        operator, x, z = self._start(batch, torch.float64)
        for apply, point, other in (
            (operator, x, self._start(batch, torch.float64, seed=1)[1]),
            (operator.adjoint, z, self._start(batch, torch.float64, seed=1)[2]),
        ):
            apart = apply(0.3 * point - 2 * other) - (0.3 * apply(point) - 2 * apply(other))
            allowed = 1e-12 * operator.norm * (size_of(point) + size_of(other))
            at_most(size_of(apart), allowed, "K(ax + by) - aKx - bKy")
            assert not bool(apply(torch.zeros_like(point)).any()), "0 is not mapped to 0"

    @each_batch
    def test_the_norm_is_a_bound(self, batch: int) -> None:
        operator, x, z = self._start(batch, torch.float64)
        norm = operator.norm
        assert isinstance(norm, float) and math.isfinite(norm) and norm > 0, f"norm is {norm!r}"
        at_most(size_of(operator(x)), norm * size_of(x) * (1 + 1e-12), "||Kx||")
        at_most(size_of(operator.adjoint(z)), norm * size_of(z) * (1 + 1e-12), "||K'z||")
        largest = self._power(operator, x)
        at_most(largest, norm * (1 + 1e-12), "||Kx|| / ||x|| after power iterations")
        if self.norm_is_tight:
            assert norm <= 1.05 * float(largest.max()), f"norm is {norm:g} where {float(largest.max()):g} was reached"

    # Derivatives, for training.

    @each_batch
    def test_derivatives_are_taken_with_the_adjoint(self, batch: int) -> None:
        operator, x, z = self._start(batch, torch.float64)
        for apply, back, point, other in ((operator, operator.adjoint, x, z), (operator.adjoint, operator, z, x)):
            point = point.clone().requires_grad_()
            (slope,) = torch.autograd.grad(inner(apply(point), other).sum(), point)
            assert_close(slope, back(other), rtol=1e-12, atol=1e-12 * operator.norm)

    def test_derivatives_of_first_and_second_order(self) -> None:
        operator, x, z = self._start(2, torch.float64)
        for apply, point in ((operator, x), (operator.adjoint, z)):
            curved = partial(_curved, apply, operator.norm)
            point = point.clone().requires_grad_()
            assert gradcheck(curved, point, fast_mode=True)
            assert gradgradcheck(curved, point, fast_mode=True)

    @each_dtype
    def test_nothing_is_recorded_where_nothing_should_be(self, dtype: torch.dtype) -> None:
        operator, x, z = self._start(2, dtype)
        assert not operator(x).requires_grad and not operator.adjoint(z).requires_grad
        with torch.no_grad():
            assert not operator(x.clone().requires_grad_()).requires_grad
        assert operator(x.clone().requires_grad_()).requires_grad, "the graph is lost"

    # Instances.

    @each_dtype
    @each_batch
    def test_an_instance_alone_is_as_in_the_batch(self, batch: int, dtype: torch.dtype) -> None:
        operator, x, z = self._start(batch, dtype)
        Kx, Kz = operator(x), operator.adjoint(z)
        for i in range(batch):
            alone, here = operator.select(i), slice(i, i + 1)
            at_most(size_of(alone(x[here]) - Kx[here]), 2 * operator.error(x, Kx)[here], "the difference")
            at_most(size_of(alone.adjoint(z[here]) - Kz[here]), 2 * operator.adjoint_error(z)[here], "the difference")
        some = torch.arange(batch - 1, -1, -2)
        at_most(size_of(operator.select(some)(x[some]) - Kx[some]), 2 * operator.error(x, Kx)[some], "the difference")

    @each_dtype
    @each("batch", (7,))
    def test_an_instance_that_is_nan_leaves_the_others_alone(self, batch: int, dtype: torch.dtype) -> None:
        operator, x, z = self._start(batch, dtype)
        for apply, point in ((operator, x), (operator.adjoint, z)):
            bad = point.clone()
            bad[0] = torch.nan
            assert_close(apply(bad)[1:], apply(point)[1:])
            assert not bool(torch.isfinite(apply(bad)[0]).all()) or not bool(apply(point)[0].any()), "a NaN was hidden"

    # Memory.

    @each_dtype
    @each_batch
    def test_every_memory_layout_gives_the_same(self, batch: int, dtype: torch.dtype) -> None:
        operator, x, z = self._start(batch, dtype)
        for apply, point in ((operator, x), (operator.adjoint, z)):
            for name, other in _layouts(point):
                plain = other.clone(memory_format=torch.contiguous_format)
                assert_close(apply(other), apply(plain.clone()), msg=f"{name}: the answer differs")
                assert torch.equal(other, plain), f"{name}: what was given was written to"

    @each_dtype
    def test_answers_are_tensors_of_their_own(self, dtype: torch.dtype) -> None:
        operator, x, z = self._start(2, dtype)
        for apply, point in ((operator, x), (operator.adjoint, z)):
            before, answer = point.clone(), apply(point)
            expected = answer.clone()
            answer.add_(1)  # refused by torch where entries share their memory
            assert torch.equal(point, before), "writing to the answer changes what was given"
            assert torch.equal(apply(point), expected), "writing to the answer changes the next one"

    # Digits.

    @each_batch
    @each("offset", OFFSETS)
    def test_rounding_is_within_its_bounds(self, batch: int, offset: float) -> None:
        operator, x, z = self._start(batch, torch.float32)
        exact, x = operator.double(), x + offset
        Kx = operator(x)
        for off, bound in (
            (exact(x.double()) - Kx, operator.error(x, Kx)),
            (exact.adjoint(z.double()) - operator.adjoint(z), operator.adjoint_error(z)),
        ):
            assert bound.shape == (batch,) and bound.dtype == torch.float32
            at_most(size_of(off), bound, "the error in float32")
        at_most(operator.error(x, Kx), self._general_error(operator, x), "a bound of its own, beside the general one")

    def test_the_copy_in_float64_leaves_the_operator_alone(self) -> None:
        operator, x, z = self._start(2, torch.float32)
        before, back = operator(x), operator.adjoint(z)
        exact = operator.double()
        assert exact(x.double()).dtype == exact.adjoint(z.double()).dtype == torch.float64
        assert torch.equal(operator(x), before) and torch.equal(operator.adjoint(z), back)
        assert exact.norm == pytest.approx(operator.norm, rel=1e-6)

    @each_dtype
    def test_the_default_dtype_does_not_matter(self, dtype: torch.dtype) -> None:
        expected = self._answers(dtype)
        with default_dtype(torch.float64):
            found = self._answers(dtype)
        for answer, other in zip(found, expected, strict=True):
            assert answer.dtype == dtype and torch.equal(answer, other)

    # What the tests above share.

    def _start(self, batch: int, dtype: torch.dtype, seed: int = 0) -> tuple[LinearOperator, Tensor, Tensor]:
        """Return the operator, a random x and a random z."""
        generator = torch.Generator().manual_seed(20 + seed)
        operator, x = self.make_operator(batch, dtype), self.points(batch, dtype, generator)
        return operator, x, torch.randn(operator(x).shape, dtype=dtype, generator=generator)

    def _answers(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        operator, x, z = self._start(2, dtype)
        return operator(x), operator.adjoint(z)

    def _power(self, operator: LinearOperator, x: Tensor) -> Tensor:
        """Return ||Kx|| / ||x|| of each instance `(B,)` after power iterations; 0 where Kx becomes 0."""
        scale = (-1, *(1,) * (x.ndim - 1))
        for _ in range(POWER_ITERATIONS):
            x = operator.adjoint(operator(x))
            x = x / size_of(x).clamp(min=torch.finfo(x.dtype).tiny).reshape(scale)
        return size_of(operator(x)) / size_of(x).clamp(min=torch.finfo(x.dtype).tiny)

    def _general_error(self, operator: LinearOperator, x: Tensor) -> Tensor:
        """Return what `roundings` promises, at least a few units."""
        return max(operator.roundings, 4.0) * torch.finfo(x.dtype).eps * operator.norm * size_of(x)


def _curved(apply: Map, norm: float, point: Tensor) -> Tensor:
    """Apply the map, and then a sine, which has a second derivative."""
    return (apply(point) / norm).sin()


def _layouts(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the same numbers as numpy and image libraries leave them; the last two repeat a part of them."""
    if x.ndim == 4:
        yield "channels last", x.contiguous(memory_format=torch.channels_last)
    turned = tuple(range(x.ndim - 1, -1, -1))
    yield "permuted", x.permute(turned).contiguous().permute(turned)
    yield "sliced", torch.stack((x, -x), dim=-1).flatten(-2)[..., ::2]
    yield "the middle of a larger one", torch.cat((x, x, x), dim=-1)[..., x.shape[-1] : 2 * x.shape[-1]]
    yield "expanded along the batch", x[:1].expand(x.shape)
    yield "expanded along the last axis", x[..., :1].expand(x.shape)
