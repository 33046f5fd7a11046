import math

import pytest
import torch
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.operators import Differences, Identity, Mask, Matrix, ParallelBeam
from lmd.operators.matrix import Stack
from lmd.terms.wrappers import join
from lmd.testing.operators import OperatorConformance

BEAMS = ParallelBeam(4, 5, 3)
SHAPES = ((2, 2, 4, 5), (2, 3, BEAMS.detectors))


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def images():
    return Stack((Differences((4, 5)), BEAMS), SHAPES, (1.0, 0.7))


class TestDifferencesAndProjections(OperatorConformance):
    norm_is_tight = False  # the parts need not be largest at the same x

    def make_operator(self, batch, dtype):
        return images()

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 2, 4, 5, dtype=dtype, generator=generator)


class TestMatricesOfEachInstance(OperatorConformance):
    norm_is_tight = False

    def make_operator(self, batch, dtype):
        parts = (
            Matrix(random(batch, 4, 3).to(dtype)),
            Mask(random(batch, 3, seed=1) > 0),
            Matrix(random(2, 3).to(dtype)),
        )
        return Stack(parts, ((4,), (3,), (2,)), (0.3, 5.0, 1.0))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


class TestOnePart(OperatorConformance):
    def make_operator(self, batch, dtype):
        return Stack([Differences((6,), 0.3)], [(1, 6)], [2.0])

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 6, dtype=dtype, generator=generator)


def test_it_holds_its_parts():
    operator, x = images(), random(2, 2, 4, 5)
    z = operator(x)
    differences, measurements = operator.split(z)
    assert z.shape == (2, sum(math.prod(shape) for shape in SHAPES))
    assert_close(differences, Differences((4, 5))(x), rtol=0, atol=0)
    assert_close(measurements, 0.7 * BEAMS(x), rtol=0, atol=0)
    assert_close(join((differences, measurements)), z, rtol=0, atol=0)


def test_the_parts_are_views_also_of_a_slice():
    operator = images()
    wide = random(4, operator(random(1, 2, 4, 5)).shape[1] + 2)
    z = wide[::2, 1:-1]
    for part, shape in zip(operator.split(z), SHAPES, strict=True):
        assert part.shape == (2, *shape)
        part.zero_()
    assert not z.any() and wide[1::2].all() and wide[:, 0].all() and wide[:, -1].all()


def test_the_norm_is_that_of_the_norms():
    assert images().norm == pytest.approx(math.hypot(Differences((4, 5)).norm, 0.7 * BEAMS.norm))
    assert Stack([Identity()] * 3, [(2,)] * 3, (1.0, 2.0, 2.0)).norm == 3


def test_the_error_of_a_part_stays_its_own():
    """Differences are exact far from 0, and the stack knows it: with the default bound it would not."""
    operator = Stack((Differences((8,)), Differences((8,), 0.5)), ((1, 8), (1, 8)), (1.0, 3.0))
    x = 2.0**20 + torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    assert bool((operator.error(x, operator(x)) < 1e-4 * super(Stack, operator).error(x, operator(x))).all())


def test_the_copy_in_float64_has_copies_of_the_parts():
    operator = Stack([Matrix(torch.ones(2, 3))], [(2,)])
    assert operator.double().parts[0].A.dtype == torch.float64
    assert operator.parts[0].A.dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Stack([Identity()], [(2,)], [1.0, 2.0]), "scales: got 2 of them, expected 1"),
        (lambda: Stack([Identity()], [(2,)], [0.0]), "scales: got 0.0, expected a positive number"),
        (
            lambda: Stack([Identity()], [(2,)]).split(torch.ones(2, 3)),
            r"z: got shape \(2, 3\), expected shape \(B, 2\)",
        ),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=r"^" + words):
        call()
