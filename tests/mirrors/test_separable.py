"""Exact learned mirrors: conformance, round trips at full size, known constants, symmetries, bad input."""

import pytest
import torch
from torch.testing import assert_close

from lmd import zoo
from lmd.errors import InputError
from lmd.mirrors import Cosine, Rotation, Separable
from lmd.solvers.saving import load_weights
from lmd.testing.mirrors import MirrorConformance

F32, F64 = torch.float32, torch.float64


def rough(mirror, dtype, amount=0.5):
    """The mirror with random parameters that its constraints allow."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in mirror.parameters():
            noise = torch.randn(parameter.shape, dtype=F64, generator=generator)
            parameter.add_((amount * noise).to(parameter.dtype))
    for module in mirror.modules():
        if hasattr(module, "constrain_"):
            module.constrain_()
    return mirror.to(dtype)


class Vectors(MirrorConformance):
    def points(self, batch, dtype, generator):
        return torch.randn(batch, 6, dtype=dtype, generator=generator)


class TestDense(Vectors):
    def make_mirror(self, dtype):
        return rough(Separable(Rotation(6), knots=2), dtype)


class TestSharedRotation(Vectors):
    def make_mirror(self, dtype):
        return rough(Separable(Rotation(3), knots=1), dtype)


class TestCosine(MirrorConformance):
    def make_mirror(self, dtype):
        return rough(Separable(Cosine(5), knots=1), dtype)

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 2, 12, 8, dtype=dtype, generator=generator)


def test_the_cosine_transform_is_orthogonal():
    basis = torch.eye(96, dtype=F64).reshape(96, 1, 12, 8)
    matrix = Cosine(5)(basis).flatten(1)
    assert_close(matrix @ matrix.T, torch.eye(96, dtype=F64), rtol=0, atol=1e-12)
    assert_close(Cosine(5).inverse(Cosine(5)(basis)), basis, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "allowed"), [(F32, 1e-5), (F64, 1e-12)])
@pytest.mark.parametrize("shape", [(512,), (1, 512, 512)], ids=["dense", "image"])
def test_round_trips_at_full_size(shape, dtype, allowed):
    transform = Rotation(512) if len(shape) == 1 else Cosine(10)
    mirror = rough(Separable(transform, knots=2), dtype)
    x = torch.randn(1, *shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for there, back in ((mirror.to_dual, mirror.to_primal), (mirror.to_primal, mirror.to_dual)):
            error = torch.linalg.vector_norm(back(there(x)) - x) / torch.linalg.vector_norm(x)
            assert float(error) < allowed


@pytest.mark.parametrize(("name", "shape"), [("denoise", (1, 512, 512)), ("inpaint", (1, 512, 512)), ("svm", (51,))])
def test_trained_mirrors_round_trip(name, shape):
    solver = zoo.load(f"{name}-exact-10", bare=True).double()
    x = torch.randn(1, *shape, dtype=F64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for k in (0, 9):
            mirror = solver.mirror_of(k)
            assert_close(mirror.to_primal(mirror.to_dual(x)), x, rtol=0, atol=1e-12 * float(x.norm()))


def test_training_keeps_rotations_orthogonal():
    """Thirty updates towards the covariance of numbers that are correlated, whose best basis is another one."""
    transform, generator = Rotation(12).double(), torch.Generator().manual_seed(0)
    mirror = Separable(transform).double()
    start, update = [p.detach().clone() for p in transform.parameters()], torch.optim.Adam(mirror.parameters(), 0.05)
    for _ in range(30):
        x = torch.randn(16, 12, dtype=F64, generator=generator).cumsum(dim=-1)
        update.zero_grad()
        (mirror.potential(x) - mirror.logs.sum()).mean().backward()
        update.step()
        for module in mirror.modules():
            if hasattr(module, "constrain_"):
                module.constrain_()
    assert any(not torch.allclose(one, other) for one, other in zip(start, transform.parameters(), strict=True))
    matrix = transform(torch.eye(12, dtype=F64)).detach()
    assert_close(matrix @ matrix.T, torch.eye(12, dtype=F64), rtol=0, atol=1e-10)


def test_the_constants_are_those_of_the_hessian():
    mirror = rough(Separable(Rotation(4), knots=2, reach=2.0), F64)
    x = 2 * torch.randn(200, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    eigenvalues = torch.stack(
        [torch.linalg.eigvalsh(torch.autograd.functional.jacobian(lambda z: mirror.to_dual(z[None])[0], z)) for z in x]
    )
    assert_close(eigenvalues.min(), mirror.strong_convexity, rtol=1e-9, atol=0)
    assert_close(eigenvalues.max(), mirror.smoothness, rtol=1e-9, atol=0)
    assert float(eigenvalues.min()) > float(mirror.strong_convexity) * (1 - 1e-9)
    assert float(eigenvalues.max()) < float(mirror.smoothness) * (1 + 1e-9)


def test_turned_and_flipped_images_give_turned_and_flipped_answers():
    mirror = rough(Separable(Cosine(5), 2), F64)
    x = torch.randn(1, 1, 8, 8, dtype=F64, generator=torch.Generator().manual_seed(0))
    for move in (lambda z: z.flip(2), lambda z: z.flip(3), lambda z: z.rot90(1, (2, 3)), lambda z: z.mT):
        assert_close(mirror.to_dual(move(x)), move(mirror.to_dual(x)), rtol=0, atol=1e-13)
        assert_close(mirror.to_primal(move(x)), move(mirror.to_primal(x)), rtol=0, atol=1e-13)


def test_divergences_of_near_points_keep_their_digits():
    mirror = rough(Separable(Rotation(6), knots=2), F64)
    x = torch.randn(5, 6, dtype=F64, generator=torch.Generator().manual_seed(0))
    move = 1e-9 * torch.randn(5, 6, dtype=F64, generator=torch.Generator().manual_seed(1))
    expected = 0.5 * (move * (mirror.to_dual(x + 1e3 * move) - mirror.to_dual(x)) / 1e3).sum(dim=1)
    assert_close(mirror.divergence(x + move, x), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("transform", "shape", "line"),
    [
        (Rotation(4), (2, 6), r"x: got shape \(2, 6\), expected shape \(B, n\) with n a multiple of 4"),
        (Cosine(), (2, 6), r"x: got shape \(2, 6\), expected images"),
    ],
)
def test_a_shape_that_does_not_fit_gets_one_line(transform, shape, line):
    with pytest.raises(InputError, match=line):
        Separable(transform).to_dual(torch.zeros(shape))


@pytest.mark.parametrize(
    ("name", "numbers"), [("positions", [[0.5, 0.2]]), ("positions", [[-0.5, 0.2]]), ("logs", [[99.0] * 3])]
)
def test_curves_that_are_none_are_refused_on_loading(name, numbers):
    mirror = Separable(Rotation(1), knots=2)
    weights = {**mirror.state_dict(), name: torch.tensor(numbers)}
    with pytest.raises(InputError, match=rf"\A{name}: got [^\n]+, expected [^\n]+\Z"):
        load_weights(mirror, weights)
