"""The conformance suite: what every mirror promises, as tests that a test class inherits. Needs pytest."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lmd.core.config import from_config, to_config
from lmd.core.files import read_tensors, write_tensors
from lmd.errors import DomainError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.terms.base import inner
from lmd.testing.cases import at_most, check_derivative, each, each_batch, each_dtype


class MirrorConformance:
    """Inherit this, say how to make the mirror and points of its domain, and run pytest.

        class TestMyMirror(MirrorConformance):
            def make_mirror(self, dtype):
                return MyMirror(dimension=3).to(dtype)

            def points(self, batch, dtype, generator):
                return torch.randn(batch, 3, dtype=dtype, generator=generator)

    `make_mirror` should give the mirror parameters that are not its start (a random matrix rather than the identity),
    the same ones each time. A mirror with `is_exact` False is held to `to_primal(y, tolerance=...)` instead of to
    rounding: the dual residual is at most the tolerance and the error at most the residual over `strong_convexity`.
    """

    # Relative and absolute error allowed where two computations of one number are compared.
    tolerance: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-4, torch.float64: 1e-9}
    # The `tolerance` asked of `to_primal`, where the mirror is not exact.
    residual_tolerance: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-2, torch.float64: 1e-6}

    def make_mirror(self, dtype: torch.dtype) -> Mirror:
        """Return the mirror under test, with parameters of this dtype."""
        raise NotImplementedError("say which mirror to test")

    def points(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random points `(batch, ...)` of the interior of the domain."""
        raise NotImplementedError("say what points of the domain look like")

    def dual_points(self, mirror: Mirror, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random dual points that `to_primal` has to answer for.

        On the whole space they are midpoints of gradients, which are gradients again: the range is convex. On a
        domain any dual point has an answer, so there they are gradients plus noise.
        """
        dual = mirror.to_dual(self.points(batch, dtype, generator))
        if mirror.domain is None:
            return (dual + mirror.to_dual(self.points(batch, dtype, generator))).detach() / 2
        return dual.detach() + torch.randn(dual.shape, dtype=dtype, generator=generator)

    def outside_points(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return points of which the last lies outside the domain, for a mirror that has one."""
        x = self.points(batch, dtype, generator)
        x[-1] += 1e3
        return x

    # The potential and its gradient.

    @each_batch
    def test_to_dual_is_the_gradient_of_the_potential(self, batch: int) -> None:
        mirror, x, _, _ = self._start(torch.float64, batch)
        (gradient,) = torch.autograd.grad(mirror.potential(x.requires_grad_()).sum(), x)
        self._close(mirror.to_dual(x), gradient)

    @each_dtype
    @each_batch
    def test_potential_is_convex_along_segments(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, z, _ = self._start(dtype, batch)
        t = torch.rand(batch, dtype=dtype, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            ends = t * mirror.potential(x) + (1 - t) * mirror.potential(z)
            bow = mirror.strong_convexity / 2 * t * (1 - t) * norm_of(x - z, mirror.norm).square()
            middle = mirror.potential(torch.lerp(z, x, t.reshape(-1, *(1,) * (x.ndim - 1))))
            slack = self._slack(mirror, x, z)
        at_most(middle, ends - bow + slack, "the potential inside a segment")

    @each_dtype
    @each_batch
    def test_to_dual_is_monotone(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, z, _ = self._start(dtype, batch)
        self._check_monotone(mirror, x, z)

    @each_dtype
    @each_batch
    def test_divergence_agrees_with_its_definition(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, z, _ = self._start(dtype, batch)
        with torch.no_grad():
            slope = inner(mirror.to_dual(z), x - z)
            expected = mirror.potential(x) - mirror.potential(z) - slope
            slack = self._slack(mirror, x, z) + self.tolerance[dtype] * slope.abs()
            divergence, at_itself = mirror.divergence(x, z), mirror.divergence(x, x)
            least = mirror.strong_convexity / 2 * norm_of(x - z, mirror.norm).square()
        assert divergence.shape == (batch,)
        at_most((divergence - expected).abs(), slack, "the difference from the definition")
        at_most(least - slack, divergence, "sigma/2 ||x - z||^2")
        at_most(at_itself.abs(), slack, "the divergence of a point from itself")

    def test_strong_convexity_is_one_number_of_0_or_more(self) -> None:
        sigma = self.make_mirror(torch.float64).strong_convexity
        assert sigma.shape == () and bool(torch.isfinite(sigma)) and sigma >= 0

    @each_dtype
    @each_batch
    def test_smoothness_bounds_the_divergence(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, z, _ = self._start(dtype, batch)
        if mirror.smoothness is None:
            return  # nothing is promised
        assert mirror.smoothness.shape == () and mirror.smoothness >= mirror.strong_convexity
        with torch.no_grad():
            most = mirror.smoothness / 2 * norm_of(x - z, mirror.norm).square()
            at_most(mirror.divergence(x, z), most + self._slack(mirror, x, z), "the divergence")

    # The inverse.

    @each_dtype
    @each_batch
    def test_to_primal_undoes_to_dual(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, _ = self._start(dtype, batch)
        with torch.no_grad():
            dual = mirror.to_dual(x)
            again = self._to_primal(mirror, dual)
            if mirror.is_exact:
                self._close(again, x)
                return
            gap = mirror.to_dual(again) - dual
        rounding = self.tolerance[dtype]
        at_most(norm_of(gap, "l2"), self.residual_tolerance[dtype] + rounding, "the dual residual")
        promised = norm_of(gap, DUAL_NORM[mirror.norm]) + rounding
        at_most(mirror.strong_convexity * norm_of(again - x, mirror.norm), promised, "sigma times the error")

    @each_dtype
    @each_batch
    def test_to_primal_solves_its_variational_inequality(self, dtype: torch.dtype, batch: int) -> None:
        """<y - to_dual(x), z - x> <= 0 for x = to_primal(y) and all z of the domain: on the whole space, equality."""
        mirror, _, z, y = self._start(dtype, batch)
        with torch.no_grad():
            x = self._to_primal(mirror, y)
            gap = y - mirror.to_dual(x)
        residual = 0 if mirror.is_exact else self.residual_tolerance[dtype]
        allowed = self.tolerance[dtype] * (1 + norm_of(y, "l2")) + residual
        if mirror.domain is None:
            at_most(norm_of(gap, "l2"), allowed, "the dual residual")
        else:
            mirror.domain.check("to_primal(y)", x)
            at_most(inner(gap, z - x), allowed * (1 + norm_of(z - x, "l2")), "<y - to_dual(x), z - x>")

    @each_dtype
    @each_batch
    def test_a_step_of_mirror_descent_is_that_of_the_maps(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, y = self._start(dtype, batch)
        with torch.no_grad():
            self._close(mirror.descend(x, mirror.to_dual(x) - y), mirror.to_primal(y))

    @each_dtype
    @each_batch
    def test_nothing_in_the_range_is_clipped(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, _ = self._start(dtype, batch)
        clipped = mirror.clipped(mirror.to_dual(x))
        assert clipped is None or (clipped.shape == (batch,) and int(clipped.abs().sum()) == 0)

    @each_dtype
    @each_batch
    def test_inconsistency_measures_the_round_trip(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, _ = self._start(dtype, batch)
        error = mirror.to_primal(mirror.to_dual(x)) - x
        for norm in ("l1", "l2"):
            self._close(mirror.inconsistency(x, norm), norm_of(error, norm))

    # Batches, shapes and kinds.

    @each_dtype
    @each_batch
    def test_shape_and_dtype_are_kept(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, _ = self._start(dtype, batch)
        before = x.clone()
        y = mirror.to_dual(x)
        for answer in (y, mirror.to_primal(y)):
            assert (answer.shape, answer.dtype) == (x.shape, dtype)
        for numbers in (mirror.potential(x), mirror.divergence(x, x.flip(0))):
            assert (numbers.shape, numbers.dtype) == ((batch,), dtype)
        assert torch.equal(x, before), "a map changed its argument in place"

    @each_dtype
    @each("batch", (7,))
    def test_an_instance_of_a_batch_is_the_instance_alone(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, z, y = self._start(dtype, batch)
        with torch.no_grad():
            together = [*self._maps(mirror, x, y), mirror.divergence(x, z)]
            for i in range(batch):
                one = slice(i, i + 1)
                alone = [*self._maps(mirror, x[one], y[one]), mirror.divergence(x[one], z[one])]
                for answer, expected in zip(alone, together, strict=True):
                    self._close(answer, expected[one])

    @each_dtype
    @each("batch", (7,))
    def test_a_nan_stays_in_its_instance(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, y = self._start(dtype, batch)
        bad_x, bad_y = x.clone(), y.clone()
        bad_x[0], bad_y[0] = torch.nan, torch.nan
        with torch.no_grad():
            for bad, good in zip(self._maps(mirror, bad_x, bad_y), self._maps(mirror, x, y), strict=True):
                self._close(bad[1:], good[1:])
            assert not torch.isfinite(mirror.to_dual(bad_x)[0]).all(), "a NaN was hidden"
            if not mirror.is_exact:
                refined = self._to_primal(mirror, bad_y)[1:]
                residual = norm_of(mirror.to_dual(refined) - y[1:], "l2")
                at_most(residual, self.residual_tolerance[dtype] + self.tolerance[dtype], "the dual residual")

    @each_batch
    def test_float32_agrees_with_float64(self, batch: int) -> None:
        mirror, x, _, y = self._start(torch.float64, batch)
        single = copy.deepcopy(mirror).to(torch.float32)
        count = 3 if mirror.is_exact else 2
        with torch.no_grad():
            answers = zip(self._maps(single, x.float(), y.float()), self._maps(mirror, x, y), strict=True)
            for answer, expected in list(answers)[:count]:
                self._close(answer, expected.float())

    # Derivatives of the maps, for training.

    @each_batch
    def test_derivatives_in_the_points(self, batch: int) -> None:
        mirror, x, z, y = self._start(torch.float64, batch)
        towards = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
        check_derivative(lambda t: mirror.potential(x + t * (z - x)))
        check_derivative(lambda t: mirror.to_dual(x + t * (z - x)))
        check_derivative(lambda t: mirror.to_primal(y + t * towards))

    @each_batch
    def test_derivatives_in_the_parameters(self, batch: int) -> None:
        mirror, x, _, y = self._start(torch.float64, batch)
        parameters = {name: p for name, p in mirror.named_parameters() if p.requires_grad}
        if not parameters:
            return  # nothing to learn
        generator = torch.Generator().manual_seed(1)
        self._training_loss(mirror, x, y).backward()  # type: ignore[no-untyped-call]
        for name, parameter in parameters.items():
            assert parameter.grad is not None, f"no gradient reaches {name}"
            assert bool(torch.isfinite(parameter.grad).all()), f"the gradient of {name} is not finite"
        towards = {name: torch.randn(p.shape, dtype=p.dtype, generator=generator) for name, p in parameters.items()}
        slope = sum((p.grad * towards[name]).sum() for name, p in parameters.items() if p.grad is not None)

        def loss_at(t: float) -> Tensor:
            moved = copy.deepcopy(mirror)
            with torch.no_grad():
                for name, parameter in parameters.items():
                    moved.get_parameter(name).copy_(parameter + t * towards[name])
                return self._training_loss(moved, x, y)

        assert_close(slope, (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6, rtol=1e-4, atol=1e-6)

    @each_dtype
    def test_maps_work_without_gradients(self, dtype: torch.dtype) -> None:
        mirror, x, _, y = self._start(dtype)
        with torch.no_grad():
            quiet = self._maps(mirror, x, y)
        assert not any(answer.requires_grad for answer in quiet), "a graph was kept inside torch.no_grad()"
        for answer, recorded in zip(quiet, self._maps(mirror, x, y), strict=True):
            self._close(answer, recorded)

    @each_dtype
    def test_constraints_leave_a_valid_mirror_alone_and_mend_a_wild_one(self, dtype: torch.dtype) -> None:
        mirror, x, _, _ = self._start(dtype)
        before = mirror.to_dual(x)
        _constrain(mirror)
        self._close(mirror.to_dual(x), before)
        generator = torch.Generator().manual_seed(20)
        with torch.no_grad():
            for parameter in mirror.parameters():
                parameter.add_(torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator), alpha=2)
        _constrain(mirror)
        self._check_monotone(mirror, *(self.points(7, dtype, generator) for _ in range(2)))

    # Saving.

    @each_dtype
    def test_saved_and_loaded_maps_are_the_same(self, dtype: torch.dtype) -> None:
        mirror, x, _, y = self._start(dtype)
        loaded = from_config(json.loads(json.dumps(to_config(mirror))))
        assert isinstance(loaded, Mirror) and type(loaded) is type(mirror)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "mirror.safetensors")
            write_tensors(file, mirror.state_dict())
            loaded.load_state_dict(read_tensors(file), assign=True)
        with torch.no_grad():
            for answer, expected in zip(self._maps(loaded, x, y), self._maps(mirror, x, y), strict=True):
                assert torch.equal(answer, expected)
        assert [p.requires_grad for p in loaded.parameters()] == [p.requires_grad for p in mirror.parameters()]

    # Edges of the domain.

    @each_dtype
    @each_batch
    def test_a_point_outside_the_domain_is_refused(self, dtype: torch.dtype, batch: int) -> None:
        mirror = self.make_mirror(dtype)
        if mirror.domain is None:
            return  # the whole space has no outside
        outside = self.outside_points(batch, dtype, torch.Generator().manual_seed(20))
        assert mirror.domain.violation(outside)[-1] > 0, "outside_points should end with a point outside"
        with pytest.raises(DomainError, match=r"\Ax: got [^\n]+, expected [^\n]+\Z"):
            mirror.to_dual(outside)
        if batch > 1:
            outside[0] = torch.nan  # a NaN beside it must not hide it
            with pytest.raises(DomainError):
                mirror.to_dual(outside)

    @each_dtype
    @each_batch
    def test_the_boundary_belongs_to_the_domain(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, _ = self._start(dtype, batch)
        if mirror.domain is None:
            return  # nor a boundary
        far = 1e2 * torch.randn(x.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
        edge = mirror.domain.nearest(x + far)
        assert bool(torch.isfinite(mirror.potential(edge)).all())
        assert bool(torch.isfinite(mirror.to_dual(edge)).all())
        self._close(self._to_primal(mirror, mirror.to_dual(edge)), edge)

    # What the tests above share.

    def _start(self, dtype: torch.dtype, batch: int = 2) -> tuple[Mirror, Tensor, Tensor, Tensor]:
        """Return the mirror, points x and z, and dual points y."""
        mirror, generator = self.make_mirror(dtype), torch.Generator().manual_seed(20)
        x, z = (self.points(batch, dtype, generator) for _ in range(2))
        return mirror, x, z, self.dual_points(mirror, batch, dtype, generator)

    def _maps(self, mirror: Mirror, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return mirror.potential(x), mirror.to_dual(x), mirror.to_primal(y)

    def _to_primal(self, mirror: Mirror, y: Tensor) -> Tensor:
        return mirror.to_primal(y, tolerance=None if mirror.is_exact else self.residual_tolerance[y.dtype])

    def _close(self, actual: Tensor, expected: Tensor) -> None:
        allowed = self.tolerance[actual.dtype]
        assert_close(actual, expected, rtol=allowed, atol=allowed)

    def _slack(self, mirror: Mirror, x: Tensor, z: Tensor) -> Tensor:
        return self.tolerance[x.dtype] * (1 + mirror.potential(x).abs() + mirror.potential(z).abs())

    def _check_monotone(self, mirror: Mirror, x: Tensor, z: Tensor) -> None:
        with torch.no_grad():
            dual_x, dual_z = mirror.to_dual(x), mirror.to_dual(z)
        assert mirror.strong_convexity >= 0, f"strong_convexity is {mirror.strong_convexity:g}"
        least = mirror.strong_convexity * norm_of(x - z, mirror.norm).square()
        slack = 1 + norm_of(x - z, "l2") * (norm_of(dual_x, "l2") + norm_of(dual_z, "l2"))
        at_most(least - self.tolerance[x.dtype] * slack, inner(dual_x - dual_z, x - z), "sigma ||x - z||^2")

    def _training_loss(self, mirror: Mirror, x: Tensor, y: Tensor) -> Tensor:
        """Return a number that depends on all three maps."""
        potential, dual, primal = self._maps(mirror, x, y)
        return potential.sum() + dual.square().sum() + primal.square().sum()


def _constrain(mirror: Mirror) -> None:
    for module in mirror.modules():
        if callable(constrain := getattr(module, "constrain_", None)):
            constrain()
