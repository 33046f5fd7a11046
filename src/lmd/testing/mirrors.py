"""The conformance suite of mirrors: tests for a test class to inherit. Needs pytest."""

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
from lmd.testing.cases import Conformance, at_most, check_derivative


class MirrorConformance(Conformance):
    """Inherit this class, define `make_mirror` and `points`, and run pytest.

        class TestMyMirror(MirrorConformance):
            def make_mirror(self, dtype):
                return MyMirror(dimension=3).to(dtype)

            def points(self, batch, dtype, generator):
                return torch.randn(batch, 3, dtype=dtype, generator=generator)

    `make_mirror` should return a mirror whose parameters differ from the initial ones (a random matrix rather than the
    identity), the same mirror each time. If `is_exact` is False, `to_primal(y, tolerance=...)` is tested: the dual
    residual has to be at most the tolerance, and the error at most the residual over `strong_convexity`.
    """

    repetition: ClassVar[dict[torch.dtype, float]] = Conformance.tolerance
    # The `tolerance` passed to `to_primal` if the mirror is not exact.
    residual_tolerance: ClassVar[dict[torch.dtype, float]] = {torch.float32: 1e-2, torch.float64: 1e-6}

    def make_mirror(self, dtype: torch.dtype) -> Mirror:
        """Return the mirror under test, with parameters of this dtype."""
        raise NotImplementedError("say which mirror to test")

    def points(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random points `(batch, ...)` of the interior of the domain."""
        raise NotImplementedError("say what points of the domain look like")

    def dual_points(self, mirror: Mirror, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return random dual points for which `to_primal` has a solution.

        On the whole space they are midpoints of gradients, which are gradients too because the range is convex. On a
        domain every dual point has a solution, so they are gradients plus noise.
        """
        dual = mirror.to_dual(self.points(batch, dtype, generator))
        if mirror.domain is None:
            return (dual + mirror.to_dual(self.points(batch, dtype, generator))).detach() / 2
        return dual.detach() + torch.randn(dual.shape, dtype=dtype, generator=generator)

    def outside_points(self, batch: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """Return points, the last of them outside the domain, if the mirror has a domain."""
        x = self.points(batch, dtype, generator)
        x[-1] += 1e3
        return x

    # The potential and its gradient.

    def test_to_dual_is_the_gradient_of_the_potential(self, batch: int) -> None:
        mirror, x, _, _ = self._start(torch.float64, batch)
        (gradient,) = torch.autograd.grad(mirror.potential(x.requires_grad_()).sum(), x)
        self._close(mirror.to_dual(x), gradient)

    def test_divergence_agrees_with_its_definition(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, z, _ = self._start(dtype, batch)
        with torch.no_grad():
            slope = inner(mirror.to_dual(z), x - z)
            expected = mirror.potential(x) - mirror.potential(z) - slope
            slack = self._slack(mirror, x, z) + self.tolerance[dtype] * slope.abs()
            divergence, at_itself = mirror.divergence(x, z), mirror.divergence(x, x)
            squares = norm_of(x - z, mirror.norm).square()
        sigma, smoothness = mirror.strong_convexity, mirror.smoothness
        assert sigma.shape == () and bool(torch.isfinite(sigma)) and sigma >= 0, f"strong_convexity is {sigma}"
        assert divergence.shape == (batch,)
        at_most((divergence - expected).abs(), slack, "the difference from the definition")
        at_most(sigma / 2 * squares - slack, divergence, "sigma/2 ||x - z||^2")
        at_most(at_itself.abs(), slack, "the divergence of a point from itself")
        if smoothness is not None:
            assert smoothness.shape == () and smoothness >= sigma
            at_most(divergence, smoothness / 2 * squares + slack, "the divergence")

    # The inverse.

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

    def test_to_primal_solves_its_variational_inequality(self, dtype: torch.dtype, batch: int) -> None:
        """<y - to_dual(x), z - x> <= 0 for x = to_primal(y) and all z of the domain; equal to 0 on the whole space."""
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

    def test_what_is_made_of_the_maps_agrees_with_them(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, y = self._start(dtype, batch)
        with torch.no_grad():
            dual = mirror.to_dual(x)
            self._close(mirror.descend(x, dual - y), mirror.to_primal(y))
            for norm in ("l1", "l2"):
                self._close(mirror.inconsistency(x, norm), norm_of(mirror.to_primal(dual) - x, norm))
            clipped = mirror.clipped(dual)
        assert clipped is None or (clipped.shape == (batch,) and int(clipped.abs().sum()) == 0)

    # Dtypes.

    def test_a_nan_does_not_keep_others_from_being_refined(self, dtype: torch.dtype) -> None:
        mirror, _, _, y = self._start(dtype)
        y[0] = torch.nan
        with torch.no_grad():
            residual = norm_of(mirror.to_dual(self._to_primal(mirror, y)[1:]) - y[1:], "l2")
        if not mirror.is_exact:
            at_most(residual, self.residual_tolerance[dtype] + self.tolerance[dtype], "the dual residual")

    def test_float32_agrees_with_float64(self, batch: int) -> None:
        mirror, x, _, y = self._start(torch.float64, batch)
        single = copy.deepcopy(mirror).to(torch.float32)
        count = 3 if mirror.is_exact else 2
        with torch.no_grad():
            answers = zip(self._maps(single, x.float(), y.float()), self._maps(mirror, x, y), strict=True)
            for answer, expected in list(answers)[:count]:
                self._close(answer, expected.float())

    # Derivatives of the maps, for training.

    def test_derivatives_in_the_points(self, batch: int) -> None:
        mirror, x, z, y = self._start(torch.float64, batch)
        towards = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
        check_derivative(lambda t: mirror.potential(x + t * (z - x)))
        check_derivative(lambda t: mirror.to_dual(x + t * (z - x)))
        check_derivative(lambda t: mirror.to_primal(y + t * towards))

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

    def test_maps_work_without_gradients(self, dtype: torch.dtype) -> None:
        mirror, x, _, y = self._start(dtype)
        with torch.no_grad():
            quiet = self._maps(mirror, x, y)
        assert not any(answer.requires_grad for answer in quiet), "a graph was kept inside torch.no_grad()"
        for answer, recorded in zip(quiet, self._maps(mirror, x, y), strict=True):
            self._close(answer, recorded)

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
        x, z = (self.points(7, dtype, generator) for _ in range(2))
        with torch.no_grad():
            dual_x, dual_z = mirror.to_dual(x), mirror.to_dual(z)
        sigma = mirror.strong_convexity
        assert sigma >= 0, f"strong_convexity is {sigma:g}"
        slack = 1 + norm_of(x - z, "l2") * (norm_of(dual_x, "l2") + norm_of(dual_z, "l2"))
        at_most(
            sigma * norm_of(x - z, mirror.norm).square() - self.tolerance[dtype] * slack,
            inner(dual_x - dual_z, x - z),
            "sigma ||x - z||^2",
        )

    # Saving.

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

    def test_a_point_outside_the_domain_is_refused(self, dtype: torch.dtype, batch: int) -> None:
        mirror = self.make_mirror(dtype)
        if mirror.domain is None:
            return  # the whole space has no outside
        outside = self.outside_points(batch, dtype, torch.Generator().manual_seed(20))
        assert mirror.domain.violation(outside)[-1] > 0, "outside_points should end with a point outside"
        with pytest.raises(DomainError, match=r"\Ax: got [^\n]+, expected [^\n]+\Z"):
            mirror.to_dual(outside)
        if batch > 1:
            outside[0] = torch.nan  # a NaN in another instance must not hide it
            with pytest.raises(DomainError):
                mirror.to_dual(outside)

    def test_the_boundary_belongs_to_the_domain(self, dtype: torch.dtype, batch: int) -> None:
        mirror, x, _, _ = self._start(dtype, batch)
        if mirror.domain is None:
            return  # the whole space has no boundary
        far = 1e2 * torch.randn(x.shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
        edge = mirror.domain.nearest(x + far)
        assert bool(torch.isfinite(mirror.potential(edge)).all())
        assert bool(torch.isfinite(mirror.to_dual(edge)).all())
        self._close(self._to_primal(mirror, mirror.to_dual(edge)), edge)

    # Helpers.

    def _start(self, dtype: torch.dtype, batch: int = 3) -> tuple[Mirror, Tensor, Tensor, Tensor]:
        """Return the mirror, points x and z, and dual points y."""
        mirror, generator = self.make_mirror(dtype), torch.Generator().manual_seed(20)
        x, z = (self.points(batch, dtype, generator) for _ in range(2))
        return mirror, x, z, self.dual_points(mirror, batch, dtype, generator)

    def _answers(self, part: Mirror, *arrays: Tensor) -> dict[str, Tensor]:
        x, z, y = arrays
        with torch.no_grad():
            answers = dict(zip(("potential", "dual", "primal"), self._maps(part, x, y), strict=True))
            return answers | {"divergence": part.divergence(x, z)}

    def _shown(self, part: Mirror) -> set[str]:
        return {"dual"}

    def _maps(self, mirror: Mirror, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return mirror.potential(x), mirror.to_dual(x), mirror.to_primal(y)

    def _to_primal(self, mirror: Mirror, y: Tensor) -> Tensor:
        return mirror.to_primal(y, tolerance=None if mirror.is_exact else self.residual_tolerance[y.dtype])

    def _slack(self, mirror: Mirror, x: Tensor, z: Tensor) -> Tensor:
        return self.tolerance[x.dtype] * (1 + mirror.potential(x).abs() + mirror.potential(z).abs())

    def _training_loss(self, mirror: Mirror, x: Tensor, y: Tensor) -> Tensor:
        """Return a number that depends on all three maps."""
        potential, dual, primal = self._maps(mirror, x, y)
        return potential.sum() + dual.square().sum() + primal.square().sum()


def _constrain(mirror: Mirror) -> None:
    for module in mirror.modules():
        if callable(constrain := getattr(module, "constrain_", None)):
            constrain()
