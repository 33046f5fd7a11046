"""The conformance suite of operators: tests for a test class to inherit. Needs pytest."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from lmd.operators.base import LinearOperator
from lmd.terms.base import inner, per_instance, size_of
from lmd.testing.cases import Conformance, at_most

POWER_ITERATIONS = 300

Map = Callable[[Tensor], Tensor]


class OperatorConformance(Conformance):
    """Inherit this class, define `make_operator` and `points`, and run pytest.

        class TestMyOperator(OperatorConformance):
            def make_operator(self, batch, dtype):
                return MyOperator(size=3)

            def points(self, batch, dtype, generator):
                return torch.randn(batch, 3, dtype=dtype, generator=generator)

    If the operator has a tensor for each instance, these should differ between instances, but be the same each time.
    The sizes should be small, as the tests take second derivatives and many power iterations.
    """

    cases: ClassVar[dict[str, Sequence[Any]]] = {**Conformance.cases, "offset": (0.0, 1e4)}  # added to x
    norm_is_tight: bool = True  # whether the norm is at most 5% above the maximum of ||Kx|| / ||x||

    def make_operator(self, batch: int, dtype: torch.dtype) -> LinearOperator:
        """Return the operator under test, for `batch` instances of this dtype."""
        raise NotImplementedError("say which operator to test")

    def points(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random x `(batch, ...)`."""
        raise NotImplementedError("say what the operator maps")

    # The map and its adjoint.

    def test_the_adjoint_is_one(self, batch: int) -> None:
        operator, x, z = self._start(torch.float64, batch)
        left, right = inner(operator(x), z), inner(x, operator.adjoint(z))
        at_most((left - right).abs(), 1e-12 * operator.norm * size_of(x) * size_of(z), "<Kx, z> - <x, K'z>")

    def test_both_are_linear(self, batch: int) -> None:
        operator, *points = self._start(torch.float64, batch)
        others = self._start(torch.float64, batch, seed=1)[1:]
        maps: tuple[Map, Map] = (operator, operator.adjoint)
        for apply, point, other in zip(maps, points, others, strict=True):
            apart = apply(0.3 * point - 2 * other) - (0.3 * apply(point) - 2 * apply(other))
            allowed = 1e-12 * operator.norm * (size_of(point) + size_of(other))
            at_most(size_of(apart), allowed, "K(ax + by) - aKx - bKy")
            assert not bool(apply(torch.zeros_like(point)).any()), "0 is not mapped to 0"

    def test_the_norm_is_a_bound(self, batch: int) -> None:
        operator, x, z = self._start(torch.float64, batch)
        norm, tiny = operator.norm, torch.finfo(x.dtype).tiny
        assert isinstance(norm, float) and math.isfinite(norm) and norm > 0, f"norm is {norm!r}"
        at_most(size_of(operator(x)), norm * size_of(x) * (1 + 1e-12), "||Kx||")
        at_most(size_of(operator.adjoint(z)), norm * size_of(z) * (1 + 1e-12), "||K'z||")
        for _ in range(POWER_ITERATIONS):
            x = operator.adjoint(operator(x))
            x = x / per_instance(size_of(x).clamp(min=tiny), x)
        largest = size_of(operator(x)) / size_of(x).clamp(min=tiny)
        at_most(largest, norm * (1 + 1e-12), "||Kx|| / ||x|| after power iterations")
        if self.norm_is_tight:
            assert norm <= 1.05 * float(largest.max()), f"norm is {norm:g} where {float(largest.max()):g} was reached"

    # Derivatives, for training.

    def test_derivatives_of_first_and_second_order(self) -> None:
        operator, x, z = self._start(torch.float64, 2)
        for apply, point in ((operator, x), (operator.adjoint, z)):

            def curved(x: Tensor, apply: Map = apply) -> Tensor:
                """Apply the map, and then a sine, which has a second derivative."""
                return (apply(x) / operator.norm).sin()

            point = point.clone().requires_grad_()
            assert gradcheck(curved, point, fast_mode=True)
            assert gradgradcheck(curved, point, fast_mode=True)

    def test_nothing_is_recorded_where_nothing_should_be(self, dtype: torch.dtype) -> None:
        operator, x, z = self._start(dtype, 2)
        assert not operator(x).requires_grad and not operator.adjoint(z).requires_grad
        with torch.no_grad():
            assert not operator(x.clone().requires_grad_()).requires_grad
        assert operator(x.clone().requires_grad_()).requires_grad, "the graph is lost"

    # Memory and digits.

    def test_entries_that_share_memory_are_entries(self, dtype: torch.dtype) -> None:
        self._check_shared(dtype, lambda x: x[..., :1].expand(x.shape))

    def test_answers_are_tensors_of_their_own(self, dtype: torch.dtype) -> None:
        operator, x, z = self._start(dtype, 2)
        for apply, point in ((operator, x), (operator.adjoint, z)):
            before, answer = point.clone(), apply(point)
            expected = answer.clone()
            answer.add_(1)  # torch refuses this if entries share memory
            assert torch.equal(point, before), "writing to the answer changes what was given"
            assert torch.equal(apply(point), expected), "writing to the answer changes the next one"

    def test_rounding_is_within_its_bounds(self, batch: int, offset: float) -> None:
        operator, x, z = self._start(torch.float32, batch)
        exact, x = operator.double(), x + offset
        Kx = operator(x)
        for off, bound in (
            (exact(x.double()) - Kx, operator.error(x, Kx)),
            (exact.adjoint(z.double()) - operator.adjoint(z), operator.adjoint_error(z)),
        ):
            assert bound.shape == (batch,) and bound.dtype == torch.float32
            at_most(size_of(off), bound, "the error in float32")
        general = max(operator.roundings, 4.0) * torch.finfo(x.dtype).eps * operator.norm * size_of(x)
        at_most(operator.error(x, Kx), general, "a bound of its own, beside the general one")

    def test_the_copy_in_float64_leaves_the_operator_alone(self) -> None:
        operator, x, z = self._start(torch.float32, 2)
        before, exact = self._answers(operator, x, z), operator.double()
        assert all(answer.dtype == torch.float64 for answer in self._answers(exact, x.double(), z.double()).values())
        assert all(torch.equal(answer, before[name]) for name, answer in self._answers(operator, x, z).items())
        assert exact.norm == pytest.approx(operator.norm, rel=1e-6)

    # Helpers.

    def _start(self, dtype: torch.dtype, batch: int = 3, seed: int = 0) -> tuple[LinearOperator, Tensor, Tensor]:
        """Return the operator, a random x and a random z."""
        generator = torch.Generator().manual_seed(20 + seed)
        operator, x = self.make_operator(batch, dtype), self.points(batch, dtype, generator)
        return operator, x, torch.randn(operator(x).shape, dtype=dtype, generator=generator)

    def _answers(self, part: LinearOperator, *arrays: Tensor) -> dict[str, Tensor]:
        return {"Kx": part(arrays[0]), "K'z": part.adjoint(arrays[1])}

    def _shown(self, part: LinearOperator) -> set[str]:
        return {"Kx", "K'z"}
