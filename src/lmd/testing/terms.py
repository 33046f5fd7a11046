"""The conformance suite of terms: tests for a test class to inherit. Needs pytest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lmd.errors import CapabilityError
from lmd.terms.base import Term, inner, per_instance, size_of
from lmd.testing.cases import Conformance, at_most, check_derivative

A = TypeVar("A")

F32, F64 = torch.float32, torch.float64
OFFSET = 1.4 * 2**24  # float32 numbers of this size are 2 apart


def normal(*shape: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers, the same in both dtypes up to rounding."""
    return torch.randn(shape, dtype=F64, generator=generator).to(dtype)


def units(*shape: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return even numbers from -20 to 20, which float32 represents exactly after adding `OFFSET`."""
    return 2.0 * torch.randint(-10, 11, shape, generator=generator).to(dtype)


class TermConformance(Conformance):
    """Inherit this class, define `make_term` and `points`, and run pytest.

        class TestMyTerm(TermConformance):
            def make_term(self, batch, dtype, generator):
                return MyTerm(torch.randn(batch, 4, dtype=dtype, generator=generator))

            def points(self, term, batch, dtype, generator):
                return torch.randn(batch, 4, dtype=dtype, generator=generator)

    A capability is not tested if the term raises a `CapabilityError`. A term with data should also define
    `make_offset`; then tests check that its residuals keep their digits however far the data are from 0.
    """

    cases: ClassVar[dict[str, Sequence[Any]]] = {
        **Conformance.cases,
        "step": (1e-8, 0.3, 1e8, None),
        "size": (1e-9, 1e-3, 0.1),
    }
    # The size of the random dual points, before they are projected, and of steps away from points.
    spread: ClassVar[float] = 2.0

    def make_term(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Term:
        """Return the term under test, of `batch` instances that differ."""
        raise NotImplementedError("say which term to test")

    def points(self, term: Term, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random points `(batch, ...)` of the interior of the domain of h, where h has a derivative."""
        raise NotImplementedError("say what points of the domain look like")

    def make_offset(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Term, Tensor] | None:
        """Return a term with data within a few units of `OFFSET`, and points near its data; None if it has no data."""
        return None

    # The function.

    def test_subgradient_inequality_and_its_constants(self, batch: int) -> None:
        term, z, _ = self._start(F64, batch)
        w = self._other_points(term, z)
        rise = term.value(w) - term.value(z) - inner(term.subgradient(z), w - z)
        slack, squares = self._slack(term, z, w), size_of(z - w).square()
        sigma, smoothness = (
            None if constant is None else torch.as_tensor(constant, dtype=F64)
            for constant in (term.strong_convexity, term.smoothness)
        )
        assert all(c is None or (c.shape in ((), (batch,)) and bool((c >= 0).all())) for c in (sigma, smoothness))
        at_most((0.0 if sigma is None else sigma) / 2 * squares, rise + slack, "the linear part and the convexity")
        if smoothness is not None:
            at_most(rise, smoothness / 2 * squares + slack, "the value over its linear part")

    def test_subgradient_is_the_derivative_where_there_is_one(self, batch: int) -> None:
        term, z, _ = self._start(F64, batch)
        values = term.value(z.requires_grad_())
        if values.requires_grad:
            (gradient,) = torch.autograd.grad(values.sum(), z)
            self._close(term.subgradient(z.detach()), gradient)
        else:
            assert not bool(term.subgradient(z.detach()).any())

    def test_kinks_are_where_the_prox_does_not_follow(self, batch: int) -> None:
        term, z, p = self._start(F64, batch)
        v = z + 0.3 * p
        z = self._try(term.prox, v, 0.3)
        kinks = self._try(term.kinks, z, (v - z) / 0.3, 0.3)
        kinks = torch.zeros_like(z, dtype=torch.bool) if kinks is None else kinks.expand_as(z)
        away = (term.prox(v + 1e-9 * self._noise(z), 0.3) - z).abs()
        assert not bool((away[kinks] > 1e-15).any()), "a kink that was left"

    def test_the_domain_and_its_edge(self, dtype: torch.dtype) -> None:
        term, z, p = self._start(dtype)
        assert not bool(term.violation(z).any()) and bool(torch.isfinite(term.value(z)).all())
        edge = self._try(term.prox, z + 1e3 * self._noise(z), 1.0)
        for answer in (term.value(edge), term.residual(edge, p)):
            assert bool(torch.isfinite(answer).all())
        assert not bool(term.violation(edge).any())
        whole = term.double()
        assert bool(torch.isfinite(whole.value(edge.double())).all()), "what float32 stored is outside in float64"

    # The prox of h and the prox of h*.

    def test_prox_minimises(self, step: float | None, batch: int) -> None:
        """Test both proxes, as prox_{t h}(z) + t prox_{h*/t}(z/t) = z (Moreau)."""
        term, z, _ = self._start(F64, batch)
        z = z + self._noise(z)
        by = torch.linspace(0.2, 2.0, len(z), dtype=z.dtype) if step is None else step
        v, t = self._try(term.prox, z, by), per_instance(by, z)

        def objective(w: Tensor) -> Tensor:
            return term.value(w) + size_of(w - z).square() / (2 * by)

        least = objective(v)
        assert bool(torch.isfinite(least).all()), "the prox is outside the domain"
        slack = 1e-12 * (1 + least.abs() + term.value(v).abs())
        for w in self._near(v):
            at_most(least, objective(w) + slack, "the value at the prox")
        q = term.conjugate_prox(z / t, 1 / by)
        at_most(size_of(v + t * q - z), 1e-9 * (1 + size_of(z) + size_of(v)), "the distance from Moreau's identity")
        at_most(size_of(term.project(q) - q), 1e-9 * (1 + size_of(q)), "the distance from the domain of h*")
        if step is None:
            p = term.project((z - v) / t)
            self._close(p, (z - v) / t)
            at_most(term.residual(v, p), self._slack(term, v) * (1 + size_of(p)), "the residual of a prox")

    def test_conjugate_prox_minimises(self, batch: int) -> None:
        term, _, p = self._start(F64, batch)
        p = p + self._noise(p)
        q = self._try(term.conjugate_prox, p, 0.3)

        def objective(r: Tensor) -> Tensor:
            return term.conjugate(r) + size_of(r - p).square() / (2 * 0.3)

        near = term.project(q)
        least = objective(near)
        slack = 1e-9 * (1 + least.abs() + term.conjugate(near).abs())
        for r in self._near(q):
            at_most(least, objective(term.project(r)) + slack, "the value at the conjugate's prox")

    def test_project_is_the_nearest_point_and_leaves_what_is_inside(self, batch: int) -> None:
        term, _, inside = self._start(F64, batch)
        p = 10 * self._noise(inside)
        near = term.project(p)
        self._close(term.project(near), near)
        for q in (inside, term.project(self._noise(inside)), term.project(torch.zeros_like(p))):
            at_most(inner(p - near, q - near), 1e-9 * (1 + size_of(p)) * (1 + size_of(q)), "the angle at a projection")
        assert not term.conjugate_is_finite or torch.equal(near, p)

    # Duality.

    def test_residual_is_that_of_fenchel_and_young(self, dtype: torch.dtype, batch: int) -> None:
        term, z, p = self._start(dtype, batch)
        residual, parts = term.residual(z, p), (term.value(z), term.conjugate(p), inner(z, p))
        at_most(z.new_zeros(batch), residual, "0")
        if dtype == F64:
            slack = 1e-9 * (1 + sum(part.abs() for part in parts))
            at_most((residual - (parts[0] + parts[1] - parts[2])).abs(), slack, "the difference from the definition")
        at = term.residual(z, term.project(term.subgradient(z)))
        at_most(at, self._slack(term, z), "the residual of a subgradient")

    def test_tilted_minimiser_minimises(self, batch: int) -> None:
        term, z, p = self._start(F64, batch)
        v = self._try(term.tilted_minimiser, -p)
        least = term.value(v) - inner(v, p)
        slack = 1e-9 * (1 + term.value(v).abs() + size_of(v) * size_of(p))
        for w in (z, self._other_points(term, z), *self._near(v)):
            at_most(least, term.value(w) - inner(w, p) + slack, "the tilted minimum")
        at_most((term.conjugate(p) + least).abs(), slack, "its distance from minus the conjugate")

    def test_gauge_is_the_smallest_that_makes_feasible(self, batch: int) -> None:
        term, _, p = self._start(F64, batch)
        u = 5 * self._noise(p)
        for v in (u, 0 * u, p, term.project(u)):
            gauge = self._try(term.gauge, v)
            assert gauge.shape == (batch,) and bool((gauge >= 0).all())
            for factor, feasible in ((1.0, True), (0.99, False)):
                scaled = v / per_instance((factor * gauge).clamp(min=1e-6), v)
                off = size_of(term.project(scaled) - scaled)
                known = torch.isfinite(gauge) & ((gauge > 1e-5) | feasible)
                right = (off <= 1e-9 * (1 + size_of(scaled))) == feasible
                assert bool((right | ~known).all()), f"at {factor} times the gauge"
        assert not term.conjugate_is_finite or not bool(term.gauge(u).any())

    def test_best_multiple_is_feasible_and_not_worse_than_1(self, batch: int) -> None:
        term, _, p = self._start(F64, batch)
        for most in (0.5, torch.full((batch,), 2.0, dtype=F64)):
            t = self._try(term.best_multiple, p, most)
            assert t.shape == (batch,) and bool((t.abs() <= most).all())
            q = p * per_instance(t, p)
            self._close(term.project(q), q)
            plain = p * per_instance(torch.as_tensor(most, dtype=F64).clamp(max=1).expand(batch), p)
            slack = 1e-9 * (1 + term.conjugate(plain).abs())
            at_most(term.conjugate(q), term.conjugate(plain) + slack, "the conjugate at the best multiple")

    # Rounding.

    def test_float32_is_within_rounding_of_float64(self, batch: int) -> None:
        term, z, p = self._start(F32, batch)
        for point in (p, term.project(term.subgradient(z))):
            true, computed, allowed = self._rounded(term, z, point)
            at_most(true, computed + allowed, "the residual in float64")
            sizes = 1 + term.value(z).abs() + term.conjugate(point).abs() + (1 + size_of(z)) * (1 + size_of(point))
            at_most(allowed, 3e-4 * sizes, "what is allowed for rounding")
        assert_close(term.double().value(z.double()).float(), term.value(z), rtol=1e-4, atol=1e-4)

    def test_data_far_from_0_cost_the_residual_no_digits(self, batch: int) -> None:
        offset = self.make_offset(batch, F32, torch.Generator().manual_seed(5))
        if offset is None:
            return  # no data
        term, z = offset
        true, computed, allowed = self._rounded(term, z, term.project(0.7 * term.subgradient(z) + 0.1))
        assert_close(computed, true, rtol=1e-5, atol=1e-6)
        at_most(true, computed + allowed, "the residual in float64")
        at_most(allowed, 1e-3 * (1 + computed), "what is allowed for rounding")

    def test_points_that_are_off_are_within_rounding(self, batch: int, size: float) -> None:
        term, z, p = self._start(F64, batch)
        for point in (p, term.project(term.subgradient(z))):
            for seed in range(4):
                w = z.lerp(self._other_points(term, z, 30 + seed), size)
                q = term.project(point + size * self._noise(p, seed))
                errors, residual = (size_of(w - z), size_of(q - point)), term.residual(z, point)
                allowed = self._try(term.rounding, z, point, *errors, residual)
                at_most(term.residual(w, q), residual + allowed, "the residual of points that are off")

    # Derivatives, steps and dtypes.

    def test_steps_per_instance_are_those_of_the_instances(self) -> None:
        term, z, _ = self._start(F64)
        steps = torch.tensor([0.1, 1.0, 3.0], dtype=F64)
        for method in (term.prox, term.conjugate_prox):
            answer = self._try(method, z, steps)
            for i in range(3):
                assert_close(answer[i], method(z, float(steps[i]))[i])

    def test_double_has_no_graph(self) -> None:
        tensors = _tensors(self._start(F32)[0].double())
        assert all(x.dtype == F64 and not x.requires_grad for _, _, x in tensors)

    def test_derivatives_in_the_points(self) -> None:
        term, z, _ = self._start(F64, 2)
        p, away = self._noise(z, 3), self._noise(z, 7)
        toward = self._other_points(term, z) - z
        for curve in (
            lambda t: term.value(z + t * toward),
            lambda t: term.prox(z + t * away, 0.7),
            lambda t: term.conjugate_prox(p + t * away, 0.7),
            lambda t: term.project(p + t * away),
            lambda t: term.residual(z + t * toward, term.project(p + t * away)),
        ):
            with suppress(CapabilityError):
                check_derivative(curve)

    def test_derivatives_in_its_own_tensors(self) -> None:
        term, z, _ = self._start(F64, 2)
        p = self._noise(z, 3)
        for i, (_, name, tensor) in enumerate(_tensors(term)):
            towards = torch.randn(tensor.shape, dtype=F64, generator=torch.Generator().manual_seed(i)) * (tensor != 0)

            def loss(t: Tensor, i: int = i, towards: Tensor = towards) -> Tensor:
                other = copy.deepcopy(term)
                owner, name, tensor = list(_tensors(other))[i]
                setattr(owner, name, tensor + t * towards)
                return torch.cat([other.prox(z, 0.7).flatten(), other.conjugate_prox(p, 0.7).flatten()])

            self._try(check_derivative, loss, name)

    def test_derivatives_are_finite_at_0_and_at_the_edges(self) -> None:
        term, z, _ = self._start(F64, 2)
        edge = self._try(term.prox, z + 1e3 * self._noise(z), 1.0).detach()
        for point in (torch.zeros_like(z), edge, term.prox(torch.zeros_like(z), 1e8)):
            x = point.clone().requires_grad_()
            for answer in (term.prox(x, 0.7), term.conjugate_prox(x, 0.7), term.project(x)):
                if answer.requires_grad:
                    (slope,) = torch.autograd.grad(answer.sum(), x)
                    assert bool(torch.isfinite(slope).all())

    # Helpers.

    def _start(self, dtype: torch.dtype, batch: int = 3) -> tuple[Term, Tensor, Tensor]:
        """Return the term, points of its domain, and dual points of the domain of h*."""
        generator = torch.Generator().manual_seed(20)
        term = self.make_term(batch, dtype, generator)
        z = self.points(term, batch, dtype, generator)
        return term, z, term.project(self._noise(z, 3))

    def _answers(self, part: Term, *arrays: Tensor) -> dict[str, Tensor]:
        """Return the answers of all methods that the term offers: one number per instance, or an array."""
        z, p = arrays
        none = z.new_zeros(len(z))
        arguments: dict[str, tuple[Any, ...]] = {
            "value": (z,),
            "conjugate": (p,),
            "residual": (z, p),
            "rounding": (z, p, none, none + 1e-3, none + 1),
            "gauge": (p,),
            "best_multiple": (p, 2.0),
            "violation": (z,),
            "prox": (z, 0.7),
            "project": (p,),
            "conjugate_prox": (p, 0.7),
            "tilted_minimiser": (p,),
            "subgradient": (z,),
        }
        answers = {}
        for name, given in arguments.items():
            with suppress(CapabilityError):
                answers[name] = getattr(part, name)(*given)
        return answers

    def _rounded(self, term: Term, z: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the residual in float64, the computed residual, and the bound on their difference, all in float64."""
        whole, none, computed = term.double(), z.new_zeros(len(z)), term.residual(z, p)
        allowed = self._try(term.rounding, z, p, none, none, computed)
        return whole.residual(z.double(), whole.project(p.double())), computed.double(), allowed.double()

    def _other_points(self, term: Term, z: Tensor, seed: int = 21) -> Tensor:
        return self.points(term, len(z), z.dtype, torch.Generator().manual_seed(seed))

    def _noise(self, z: Tensor, seed: int = 4) -> Tensor:
        return self.spread * torch.randn(z.shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(z)

    def _near(self, v: Tensor) -> Iterator[Tensor]:
        for seed, size in enumerate((1e-6, 1e-3, 0.1, 1.0)):
            noise = self._noise(v, 40 + seed)
            yield v + size * noise
            yield v - size * noise
            yield v + size * noise * (self._noise(v, 50 + seed) > 0)

    def _slack(self, term: Term, *points: Tensor) -> Tensor:
        sizes = [term.value(z).abs() + size_of(term.subgradient(z)) * size_of(z) for z in points]
        return self.tolerance[points[0].dtype] * (1 + torch.stack(sizes).sum(dim=0))

    def _try(self, call: Callable[..., A], *arguments: object) -> A:
        """Return the answer, or skip the test if the term lacks the capability."""
        try:
            return call(*arguments)
        except CapabilityError as lacking:
            pytest.skip(str(lacking))


def _tensors(term: Term) -> Iterator[tuple[Term, str, Tensor]]:
    """Yield each tensor of a term and of its inner terms, with its owner and its name."""
    for name, value in list(vars(term).items()):
        if isinstance(value, Tensor) and value.dtype.is_floating_point:
            yield term, name, value
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Term):
                yield from _tensors(part)
