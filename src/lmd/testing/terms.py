"""The conformance suite: what every term promises, as tests that a test class inherits. Needs pytest."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lmd.errors import CapabilityError
from lmd.terms.base import Scale, Term, inner, per_instance, size_of
from lmd.testing.cases import at_most, check_derivative, default_dtype, each, each_batch, each_dtype

A = TypeVar("A")

each_step = each("step", (1e-8, 0.3, 1e8, None))
F32, F64 = torch.float32, torch.float64
WITH_OUT = {"prox", "project", "conjugate_prox", "tilted_minimiser"}  # methods that write to `out`
ARRAYS = WITH_OUT | {"subgradient"}  # methods whose answer has the shape of z
OFFSET = 1.4 * 2**24  # where float32 tells apart nothing less than 2 units


def normal(*shape: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return random numbers of size 1, the same ones in either dtype up to rounding."""
    return torch.randn(shape, dtype=F64, generator=generator).to(dtype)


def units(*shape: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return even numbers from -20 to 20, which float32 can tell apart at the `OFFSET`."""
    return 2.0 * torch.randint(-10, 11, shape, generator=generator).to(dtype)


class TermConformance:
    """Inherit this, say how to make the term and points of its domain, and run pytest.

        class TestMyTerm(TermConformance):
            def make_term(self, batch, dtype, generator):
                return MyTerm(torch.randn(batch, 4, dtype=dtype, generator=generator))

            def points(self, term, batch, dtype, generator):
                return torch.randn(batch, 4, dtype=dtype, generator=generator)

    Capabilities that the term says it lacks, by a `CapabilityError`, are not tested. A term with data also gives
    `make_offset`, and is held to residuals that keep their digits however far from 0 the data are.
    """

    # Relative and absolute error allowed where two computations of one number are compared.
    tolerance: ClassVar[dict[torch.dtype, float]] = {F32: 1e-4, F64: 1e-9}
    # The size of the random dual points, before they are projected, and of steps away from points.
    spread: ClassVar[float] = 2.0

    def make_term(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Term:
        """Return the term under test, of `batch` instances that differ."""
        raise NotImplementedError("say which term to test")

    def points(self, term: Term, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random points `(batch, ...)` of the interior of the domain of h, where h has a derivative."""
        raise NotImplementedError("say what points of the domain look like")

    def make_offset(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Term, Tensor] | None:
        """Return a term whose data are `OFFSET` and a few units, and points within units of them; None without data."""
        return None

    # The function.

    @each_dtype
    @each_batch
    def test_shapes_and_dtypes_are_kept_and_arguments_untouched(self, dtype: torch.dtype, batch: int) -> None:
        term, z, p = self._start(batch, dtype)
        before = z.clone(), p.clone()
        for name, answer in self._answers(term, z, p).items():
            expected = z.shape if name in ARRAYS else (batch,)
            assert (answer.shape, answer.dtype) == (expected, dtype), name
        assert torch.equal(z, before[0]) and torch.equal(p, before[1]), "a method changed its argument in place"

    @each_batch
    def test_value_is_convex_along_segments(self, batch: int) -> None:
        term, z, _ = self._start(batch, F64)
        w = self._other_points(term, batch, F64)
        t = torch.rand(batch, dtype=F64, generator=torch.Generator().manual_seed(1))
        sigma = 0.0 if term.strong_convexity is None else term.strong_convexity
        bow = sigma / 2 * t * (1 - t) * size_of(z - w).square()
        middle = term.value(z.lerp(w, filled_like(t, z)))
        ends = (1 - t) * term.value(z) + t * term.value(w)
        at_most(middle, ends - bow + self._slack(term, z, w), "the value inside a segment")

    @each_batch
    def test_subgradient_inequality_and_its_constants(self, batch: int) -> None:
        term, z, _ = self._start(batch, F64)
        w = self._other_points(term, batch, F64)
        rise = term.value(w) - term.value(z) - inner(term.subgradient(z), w - z)
        slack, squares = self._slack(term, z, w), size_of(z - w).square()
        sigma = 0.0 if term.strong_convexity is None else term.strong_convexity
        at_most(sigma / 2 * squares, rise + slack, "the linear part and the strong convexity")
        if term.smoothness is not None:
            at_most(rise, term.smoothness / 2 * squares + slack, "the value over its linear part")

    @each_batch
    def test_constants_are_numbers_or_one_per_instance(self, batch: int) -> None:
        term, _, _ = self._start(batch, F64)
        for constant in (term.strong_convexity, term.smoothness):
            if isinstance(constant, Tensor):
                assert constant.shape in ((), (batch,)) and bool((constant >= 0).all())
            elif constant is not None:
                assert constant >= 0

    @each_batch
    def test_subgradient_is_the_derivative_where_there_is_one(self, batch: int) -> None:
        term, z, _ = self._start(batch, F64)
        values = term.value(z.requires_grad_())
        if values.requires_grad:
            (gradient,) = torch.autograd.grad(values.sum(), z)
            self._close(term.subgradient(z.detach()), gradient)
        else:
            assert not bool(term.subgradient(z.detach()).any())

    def test_points_of_the_domain_are_not_outside(self) -> None:
        term, z, _ = self._start(3, F32)
        assert torch.equal(term.violation(z), z.new_zeros(3)) and bool(torch.isfinite(term.value(z)).all())

    @each_batch
    def test_kinks_are_where_the_prox_does_not_follow(self, batch: int) -> None:
        term, z, p = self._start(batch, F64)
        v = z + 0.3 * p
        z = self._try(term.prox, v, 0.3)
        kinks = self._try(term.kinks, z, (v - z) / 0.3, 0.3)
        kinks = torch.zeros_like(z, dtype=torch.bool) if kinks is None else kinks.expand_as(z)
        away = (term.prox(v + 1e-9 * self._noise(z), 0.3) - z).abs()
        assert not bool((away[kinks] > 1e-15).any()), "a kink that was left"

    # The prox and the conjugate's.

    @each_step
    @each_batch
    def test_prox_minimises(self, step: float | None, batch: int) -> None:
        term, z, _ = self._start(batch, F64)
        z, by = z + self._noise(z), self._step(step, z)
        v = self._try(term.prox, z, by)

        def objective(w: Tensor) -> Tensor:
            return term.value(w) + size_of(w - z).square() / (2 * by)

        least = objective(v)
        assert bool(torch.isfinite(least).all()), "the prox is outside the domain"
        slack = 1e-12 * (1 + least.abs() + term.value(v).abs())
        for w in self._near(v):
            at_most(least, objective(w) + slack, "the value at the prox")

    @each_batch
    def test_prox_is_where_its_subgradient_says(self, batch: int) -> None:
        term, z, _ = self._start(batch, F64)
        z, by = z + self._noise(z), self._step(None, z)
        v = self._try(term.prox, z, by)
        p = (z - v) / per_instance(by, z)
        self._close(term.project(p), p)
        at_most(term.residual(v, term.project(p)), self._slack(term, v) * (1 + size_of(p)), "the residual of a prox")

    @each_step
    @each_batch
    def test_moreaus_identity(self, step: float | None, batch: int) -> None:
        """prox_{t h}(z) + t prox_{h*/t}(z/t) = z."""
        term, z, _ = self._start(batch, F64)
        z, by = z + self._noise(z), self._step(step, z)
        t = per_instance(by, z)
        v = self._try(term.prox, z, by)
        off = size_of(v + t * term.conjugate_prox(z / t, 1 / by) - z)
        at_most(off, 1e-9 * (1 + size_of(z) + size_of(v)), "the distance from Moreau's identity")

    @each_step
    @each_batch
    def test_conjugate_prox_minimises(self, step: float | None, batch: int) -> None:
        term, _, p = self._start(batch, F64)
        p, by = p + self._noise(p), self._step(step, p)
        q = self._try(term.conjugate_prox, p, by)

        def objective(r: Tensor) -> Tensor:
            return term.conjugate(r) + size_of(r - p).square() / (2 * by)

        near = term.project(q)
        at_most(size_of(near - q), 1e-9 * (1 + size_of(q)), "the distance from the domain of the conjugate")
        least = objective(near)
        slack = 1e-9 * (1 + least.abs() + term.conjugate(near).abs())
        for r in self._near(q):
            at_most(least, objective(term.project(r)) + slack, "the value at the conjugate's prox")

    @each_batch
    def test_project_is_the_nearest_point_and_leaves_what_is_inside(self, batch: int) -> None:
        term, _, inside = self._start(batch, F64)
        p = 10 * self._noise(inside)
        near = term.project(p)
        self._close(term.project(near), near)
        for q in (inside, term.project(self._noise(inside)), torch.zeros_like(p)):
            q = term.project(q)
            at_most(inner(p - near, q - near), 1e-9 * (1 + size_of(p)) * (1 + size_of(q)), "the angle at a projection")
        if term.conjugate_is_finite:
            assert torch.equal(near, p)

    # Duality.

    @each_batch
    def test_residual_is_that_of_fenchel_and_young(self, batch: int) -> None:
        term, z, p = self._start(batch, F64)
        residual, parts = term.residual(z, p), (term.value(z), term.conjugate(p), inner(z, p))
        slack = 1e-9 * (1 + sum(part.abs() for part in parts))
        at_most((residual - (parts[0] + parts[1] - parts[2])).abs(), slack, "the difference from the definition")

    @each_dtype
    @each_batch
    def test_residual_is_never_negative_and_0_at_a_subgradient(self, dtype: torch.dtype, batch: int) -> None:
        term, z, p = self._start(batch, dtype)
        at_most(z.new_zeros(batch), term.residual(z, p), "0")
        at = term.residual(z, term.project(term.subgradient(z)))
        at_most(at, self._slack(term, z), "the residual of a subgradient")

    @each_batch
    def test_tilted_minimiser_minimises(self, batch: int) -> None:
        term, z, p = self._start(batch, F64)
        v = self._try(term.tilted_minimiser, -p)
        least = term.value(v) - inner(v, p)
        slack = 1e-9 * (1 + term.value(v).abs() + size_of(v) * size_of(p))
        for w in (z, self._other_points(term, batch, F64), *self._near(v)):
            at_most(least, term.value(w) - inner(w, p) + slack, "the tilted minimum")
        at_most((term.conjugate(p) + least).abs(), slack, "its distance from minus the conjugate")

    @each_batch
    def test_gauge_is_the_smallest_that_makes_feasible(self, batch: int) -> None:
        term, _, p = self._start(batch, F64)
        u = 5 * self._noise(p)
        for v in (u, 0 * u, p, term.project(u)):
            gauge = self._try(term.gauge, v)
            assert gauge.shape == (batch,) and bool((gauge >= 0).all())
            for factor, feasible in ((1.0, True), (0.99, False)):
                scaled = v / filled_like((factor * gauge).clamp(min=1e-6), v)
                off = size_of(term.project(scaled) - scaled)
                known = torch.isfinite(gauge) & ((gauge > 1e-5) | feasible)
                right = (off <= 1e-9 * (1 + size_of(scaled))) == feasible
                assert bool((right | ~known).all()), f"at {factor} times the gauge"
        if term.conjugate_is_finite:
            assert not bool(term.gauge(u).any())

    @each_batch
    def test_best_multiple_is_feasible_and_not_worse_than_1(self, batch: int) -> None:
        term, _, p = self._start(batch, F64)
        for most in (0.5, torch.full((batch,), 2.0, dtype=F64)):
            t = self._try(term.best_multiple, p, most)
            assert t.shape == (batch,) and bool((t.abs() <= most).all())
            q = p * filled_like(t, p)
            self._close(term.project(q), q)
            plain = p * filled_like(torch.as_tensor(most, dtype=F64).clamp(max=1).expand(batch), p)
            slack = 1e-9 * (1 + term.conjugate(plain).abs())
            at_most(term.conjugate(q), term.conjugate(plain) + slack, "the conjugate at the best multiple")

    # Rounding.

    @each_batch
    def test_float32_is_within_rounding_of_float64(self, batch: int) -> None:
        term, z, p = self._start(batch, F32)
        none = z.new_zeros(batch)
        for point in (p, term.project(term.subgradient(z))):
            computed = term.residual(z, point)
            allowed = self._try(term.rounding, z, point, none, none, computed)
            whole = term.double()
            true = whole.residual(z.double(), whole.project(point.double()))
            at_most(true, computed.double() + allowed.double(), "the residual in float64")
            sizes = 1 + term.value(z).abs() + term.conjugate(point).abs() + (1 + size_of(z)) * (1 + size_of(point))
            at_most(allowed, 3e-4 * sizes, "what is allowed for rounding")

    @each_batch
    @each("size", (1e-9, 1e-3, 0.1))
    def test_points_that_are_off_are_within_rounding(self, batch: int, size: float) -> None:
        term, z, p = self._start(batch, F64)
        for point in (p, term.project(term.subgradient(z))):
            for seed in range(4):
                w = self._moved(term, z, size, seed)
                q = term.project(point + size * self._noise(p, seed))
                errors, residual = (size_of(w - z), size_of(q - point)), term.residual(z, point)
                allowed = self._try(term.rounding, z, point, *errors, residual)
                at_most(term.residual(w, q), residual + allowed, "the residual of points that are off")

    @each_batch
    def test_data_far_from_0_cost_the_residual_no_digits(self, batch: int) -> None:
        offset = self.make_offset(batch, F32, torch.Generator().manual_seed(5))
        if offset is None:
            return  # no data
        term, z = offset
        whole, none = term.double(), z.new_zeros(batch)
        p = term.project(0.7 * term.subgradient(z) + 0.1)
        computed, true = term.residual(z, p), whole.residual(z.double(), whole.project(p.double()))
        assert_close(computed.double(), true, rtol=1e-5, atol=1e-6)
        at_most(true, (computed + term.rounding(z, p, none, none, computed)).double(), "the residual in float64")
        at_most(term.rounding(z, p, none, none, computed), 1e-3 * (1 + computed), "what is allowed for rounding")

    # Batches, kinds and memory.

    @each_dtype
    def test_an_instance_of_a_batch_is_the_instance_alone(self, dtype: torch.dtype) -> None:
        term, z, p = self._start(3, dtype)
        for index in (1, slice(1, 2), torch.tensor([1])):
            alone = self._answers(term.select(index), z[1:2], p[1:2])
            _same(alone, {name: answer[1:2] for name, answer in self._answers(term, z, p).items()})

    def test_steps_per_instance_are_those_of_the_instances(self) -> None:
        term, z, _ = self._start(3, F64)
        steps = torch.tensor([0.1, 1.0, 3.0], dtype=F64)
        for method in (term.prox, term.conjugate_prox):
            answer = self._try(method, z, steps)
            for i in range(3):
                assert_close(answer[i], method(z, float(steps[i]))[i])

    def test_a_nan_stays_in_its_instance(self) -> None:
        term, z, p = self._start(3, F64)
        bad_z, bad_p = z.clone(), p.clone()
        bad_z[0], bad_p[0] = torch.nan, torch.nan
        bad = self._answers(term, bad_z, bad_p)
        for name, good in self._answers(term, z, p).items():
            assert torch.equal(good[1:], bad[name][1:]), name

    @each_dtype
    def test_other_layouts_give_the_same(self, dtype: torch.dtype) -> None:
        term, z, p = self._start(3, dtype)
        other_z, other_p = (x.mT.contiguous().mT for x in (z, p))
        _same(self._answers(term, other_z, other_p), self._answers(term, z, p))

    def test_out_is_written_and_may_be_the_argument(self) -> None:
        term, z, p = self._start(3, F32)
        answers = self._answers(term, z, p)
        for name in WITH_OUT & answers.keys():
            steps = (0.7,) if name in ("prox", "conjugate_prox") else ()
            place = torch.full_like(z, torch.nan)
            strided = torch.full_like(torch.cat([z, z], dim=-1), torch.nan)[..., : z.shape[-1]]
            argument = (z if name == "prox" else p).clone()
            for out, given in ((place, argument.clone()), (strided, argument.clone()), (argument, argument)):
                assert getattr(term, name)(given, *steps, out=out) is out, f"{name} returned something other than out"
                _same({name: out}, {name: answers[name]})

    def test_float64_as_default_changes_nothing(self) -> None:
        with default_dtype(F64):
            term, z, p = self._start(3, F32)
            answers = self._answers(term, z, p)
        assert [name for name, answer in answers.items() if answer.dtype != F32] == []

    def test_double_has_the_same_numbers_and_no_graph(self) -> None:
        term, z, _ = self._start(3, F32)
        whole = term.double()
        tensors = list(_tensors(whole))
        assert all(x.dtype == F64 and not x.requires_grad for _, _, x in tensors)
        assert_close(whole.value(z.double()).float(), term.value(z), rtol=1e-4, atol=1e-4)

    # Derivatives.

    def test_derivatives_in_the_points(self) -> None:
        term, z, _ = self._start(2, F64)
        p, away = self._noise(z, 3), self._noise(z, 7)
        toward = self._other_points(term, 2, F64) - z
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
        term, z, _ = self._start(2, F64)
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
        term, z, _ = self._start(2, F64)
        edge = self._try(term.prox, z + 1e3 * self._noise(z), 1.0).detach()
        for point in (torch.zeros_like(z), edge, term.prox(torch.zeros_like(z), 1e8)):
            x = point.clone().requires_grad_()
            for answer in (term.prox(x, 0.7), term.conjugate_prox(x, 0.7), term.project(x)):
                if answer.requires_grad:
                    (slope,) = torch.autograd.grad(answer.sum(), x)
                    assert bool(torch.isfinite(slope).all())

    @each_dtype
    def test_the_edge_of_the_domain_belongs_to_it(self, dtype: torch.dtype) -> None:
        term, z, p = self._start(3, dtype)
        edge = self._try(term.prox, z + 1e3 * self._noise(z), 1.0)
        residual = term.residual(edge, p)
        for answer in (term.value(edge), residual):
            assert bool(torch.isfinite(answer).all())
        assert not bool(term.violation(edge).any())
        whole = term.double()
        assert bool(torch.isfinite(whole.value(edge.double())).all()), "what float32 stored is outside in float64"

    # What the tests above share.

    def _start(self, batch: int, dtype: torch.dtype) -> tuple[Term, Tensor, Tensor]:
        """Return the term, points of its domain, and dual points of the domain of h*."""
        generator = torch.Generator().manual_seed(20)
        term = self.make_term(batch, dtype, generator)
        z = self.points(term, batch, dtype, generator)
        return term, z, term.project(self._noise(z, 3))

    def _other_points(self, term: Term, batch: int, dtype: torch.dtype) -> Tensor:
        return self.points(term, batch, dtype, torch.Generator().manual_seed(21))

    def _noise(self, z: Tensor, seed: int = 4) -> Tensor:
        return self.spread * torch.randn(z.shape, dtype=F64, generator=torch.Generator().manual_seed(seed)).to(z)

    def _moved(self, term: Term, z: Tensor, size: float, seed: int) -> Tensor:
        """Return a point of the domain near z: part of the way to another."""
        other = self.points(term, len(z), z.dtype, torch.Generator().manual_seed(30 + seed))
        return z.lerp(other, size)

    def _near(self, v: Tensor) -> Iterator[Tensor]:
        for seed, size in enumerate((1e-6, 1e-3, 0.1, 1.0)):
            noise = self._noise(v, 40 + seed)
            yield v + size * noise
            yield v - size * noise
            yield v + size * noise * (self._noise(v, 50 + seed) > 0)

    def _step(self, step: float | None, z: Tensor) -> Scale:
        return torch.linspace(0.2, 2.0, len(z), dtype=z.dtype) if step is None else step

    def _slack(self, term: Term, *points: Tensor) -> Tensor:
        sizes = [term.value(z).abs() + size_of(term.subgradient(z)) * size_of(z) for z in points]
        return self.tolerance[points[0].dtype] * (1 + torch.stack(sizes).sum(dim=0))

    def _close(self, actual: Tensor, expected: Tensor) -> None:
        allowed = self.tolerance[actual.dtype]
        assert_close(actual, expected, rtol=allowed, atol=allowed)

    def _try(self, call: Callable[..., A], *arguments: object) -> A:
        """Return the answer; the test ends here, as skipped, where the term says that it lacks the capability."""
        try:
            return call(*arguments)
        except CapabilityError as lacking:
            pytest.skip(str(lacking))

    def _answers(self, term: Term, z: Tensor, p: Tensor) -> dict[str, Tensor]:
        """Return the answers of all methods that the term offers: one number per instance, or an array."""
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
                answers[name] = getattr(term, name)(*given)
        return answers


def filled_like(numbers: Tensor, z: Tensor) -> Tensor:
    """Return one number per instance `(B,)` in a shape that multiplies z."""
    return numbers.reshape(-1, *(1,) * (z.ndim - 1))


def _parts(term: Term) -> Iterator[Term]:
    """Yield the term and the terms it is made of."""
    yield term
    for value in vars(term).values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Term):
                yield from _parts(part)


def _tensors(term: Term) -> Iterator[tuple[Term, str, Tensor]]:
    """Yield the tensors of a term and of the terms in it with their owners and names."""
    for part in _parts(term):
        for name, value in list(vars(part).items()):
            if isinstance(value, Tensor) and value.dtype.is_floating_point:
                yield part, name, value


def _same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, answer in actual.items():
        assert_close(answer, expected[name], msg=f"{name} differs")
