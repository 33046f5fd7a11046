import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.operators import Differences
from lmd.terms.base import size_of
from lmd.testing.operators import OperatorConformance

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
SPACED = [((1, 2), None), ((2, 2), 1.0), ((1, 6), 0.5), ((5, 1), (2.0, 3.0)), ((4, 7), (0.3, 2.0)), ((6,), 0.1)]
SPACED += [((3, 1, 4), (1.0, 2.0, 0.5)), ((2, 3, 4, 2), None)]


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix_of(K):
    """The operator as a matrix, column by column."""
    columns = torch.eye(math.prod(K.shape), dtype=torch.float64).reshape(-1, *K.shape)
    return K(columns).flatten(1).T


class Along(OperatorConformance):
    shape, spacing, before = (), None, (3,)

    def make_operator(self, batch, dtype):
        return Differences(self.shape, self.spacing)

    def points(self, batch, dtype, generator):
        return torch.randn(batch, *self.before, *self.shape, dtype=dtype, generator=generator)


class TestImages(Along):
    shape = (4, 5)


class TestSignals(Along):
    shape, before = (7,), ()


class TestSpacedSignals(Along):
    shape, spacing = (6,), 0.3


class TestVolumes(Along):
    shape, spacing, before = (3, 2, 4), (0.7, 1.0, 2.5), ()


class TestFourAxes(Along):
    shape, before = (2, 3, 2, 3), (2,)


class TestOneRow(Along):
    shape = (1, 5)


def test_images_by_hand():
    x = torch.tensor([[[[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]]])
    down = torch.tensor([[7.0, 14.0, 28.0], [0.0, 0.0, 0.0]])
    right = torch.tensor([[1.0, 2.0, 0.0], [8.0, 16.0, 0.0]])
    assert_close(Differences((2, 3))(x), torch.stack([down, right])[None, None])
    assert_close(Differences((2, 3), (2.0, 0.5))(x), torch.stack([down / 2, 2 * right])[None, None])


def test_volumes_are_torch_diff():
    x, h = random(2, 3, 4, 5), (0.5, 2.0, 3.0)
    z = Differences((3, 4, 5), h)(x)
    for axis in range(3):
        assert_close(z[:, axis].narrow(axis + 1, 0, x.shape[axis + 1] - 1), x.diff(dim=axis + 1) / h[axis])
        assert not z[:, axis].select(axis + 1, -1).any()


@settings(max_examples=30)
@given(SHAPES, st.floats(0.1, 10), st.integers(0, 99))
def test_the_adjoint_is_one_in_any_dimension(shape, spacing, seed):
    K = Differences(shape, spacing)
    x, z = random(2, 3, *shape, seed=seed), random(2, 3, len(shape), *shape, seed=seed + 1)
    assert_close((K(x) * z).flatten(1).sum(1), (x * K.adjoint(z)).flatten(1).sum(1), rtol=1e-11, atol=1e-11)


def test_the_adjoint_does_not_look_across_the_border():
    K = Differences((3, 4))
    z = random(1, 1, 2, 3, 4)
    other = z.clone()
    other[:, :, 0, -1], other[:, :, 1, :, -1] = 7.0, -5.0
    assert_close(K.adjoint(z), K.adjoint(other), rtol=0, atol=0)


@pytest.mark.parametrize(("shape", "spacing"), SPACED)
def test_the_norm_is_the_largest_singular_value(shape, spacing):
    K = Differences(shape, spacing)
    largest = float(torch.linalg.svdvals(matrix_of(K))[0])
    assert K.norm >= largest * (1 - 1e-12)
    assert K.norm == pytest.approx(largest, rel=1e-12)


def test_a_single_pixel_has_no_differences():
    K = Differences((1, 1))
    assert_close(K(torch.ones(1, 1, 1, 1)), torch.zeros(1, 1, 2, 1, 1))
    assert_close(K.adjoint(torch.ones(1, 1, 2, 1, 1)), torch.zeros(1, 1, 1, 1))
    assert K.norm > 0  # steps divide by it


@pytest.mark.parametrize("spacing", [None, 0.3])
def test_the_error_is_relative_to_the_differences(spacing):
    """However far from 0 the image is: the bound does not grow with it, and holds."""
    K = Differences((8, 8), spacing)
    x = (torch.randint(0, 50, (3, 1, 8, 8), generator=torch.Generator().manual_seed(0)) + 2.0**23).float()
    z = K(x)
    bound = K.error(x, z)
    assert bool((size_of(K(x.double()) - z) <= bound).all())
    assert bool((bound <= 1e-6 * size_of(z)).all())
    if spacing is None:
        assert torch.equal(K(x.double()), z.double())  # whole numbers: no rounding at all


def test_the_parts_of_a_larger_problem_agree():
    """Three-dimensional differences of a volume that is the same in depth are those of its image."""
    x = random(2, 4, 5)
    deep = Differences((3, 4, 5))(x[:, None].expand(2, 3, 4, 5))
    assert not deep[:, 0].any()
    assert torch.equal(deep[:, 1:, 1], Differences((4, 5))(x))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Differences((0, 3)), "shape: got 0"),
        (lambda: Differences(()), r"shape: got \(\), expected the length of each axis"),
        (lambda: Differences(5), "shape: got 5, expected the length of each axis"),
        (lambda: Differences((2, 3), 0.0), "spacing: got 0"),
        (lambda: Differences((2, 3), (1.0, 2.0, 3.0)), "spacing: got 3 numbers, expected one number, or one for each"),
        (
            lambda: Differences((2, 3))(torch.ones(1, 1, 3, 2)),
            r"x: got shape \(1, 1, 3, 2\), expected shape \(B, ..., 2, 3\)",
        ),
        (lambda: Differences((2, 3))(torch.ones(2, 3)), r"x: got shape \(2, 3\)"),
        (
            lambda: Differences((2, 3)).adjoint(torch.ones(1, 1, 2, 3)),
            r"z: got shape .* expected shape \(B, ..., 2, 2, 3\)",
        ),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=r"^" + words):
        call()
