import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.problems import FiniteDifferences, Identity, Mask

SIDES = st.integers(1, 7)


def random(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix_of(operator, *shape):
    """The operator as a matrix, column by column."""
    columns = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return operator(columns).flatten(1).T


def test_differences_by_hand():
    x = torch.tensor([[[[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]]])
    down = torch.tensor([[7.0, 14.0, 28.0], [0.0, 0.0, 0.0]])
    right = torch.tensor([[1.0, 2.0, 0.0], [8.0, 16.0, 0.0]])
    assert_close(FiniteDifferences(2, 3)(x), torch.stack([down, right])[None, None])


@given(SIDES, SIDES, st.integers(0, 99))
def test_the_adjoint_of_differences_is_their_adjoint(height, width, seed):
    K = FiniteDifferences(height, width)
    x, z = random(2, 3, height, width, seed=seed), random(2, 3, 2, height, width, seed=seed + 1)
    assert_close((K(x) * z).flatten(1).sum(1), (x * K.adjoint(z)).flatten(1).sum(1), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("operator", [Identity(), Mask((random(2, 1, 4, 5) > 0).double())], ids=["identity", "mask"])
def test_the_adjoint_of_identity_and_mask(operator):
    x, z = random(2, 3, 4, 5), random(2, 3, 4, 5, seed=1)
    assert_close((operator(x) * z).sum(), (x * operator.adjoint(z)).sum(), rtol=1e-12, atol=1e-12)
    assert operator.norm == 1
    operator(x).zero_()  # a tensor of its own: writing to it leaves x alone
    operator.adjoint(x).zero_()
    assert_close(x, random(2, 3, 4, 5))


def test_the_adjoint_does_not_look_across_the_border():
    K = FiniteDifferences(3, 4)
    z = random(1, 1, 2, 3, 4)
    other = z.clone()
    other[:, :, 0, -1], other[:, :, 1, :, -1] = 7.0, -5.0
    assert_close(K.adjoint(z), K.adjoint(other), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(1, 2), (2, 2), (1, 6), (5, 1), (4, 7)])
def test_the_norm_of_differences_is_the_largest_singular_value(size):
    K = FiniteDifferences(*size)
    largest = torch.linalg.svdvals(matrix_of(K, 1, *size))[0]
    assert K.norm >= largest - 1e-12
    assert_close(K.norm, float(largest), rtol=1e-12, atol=0)
    assert K.norm**2 < 8


def test_a_single_pixel_has_no_differences():
    K = FiniteDifferences(1, 1)
    assert_close(K(torch.ones(1, 1, 1, 1)), torch.zeros(1, 1, 2, 1, 1))
    assert_close(K.adjoint(torch.ones(1, 1, 2, 1, 1)), torch.zeros(1, 1, 1, 1))
    assert K.norm > 0  # steps divide by it


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (4, 1), (4, 6)])
def test_solve_inverts(size):
    K = FiniteDifferences(*size)
    x = random(2, 3, *size)
    assert_close(K.solve(0.7 * x + 2.5 * K.adjoint(K(x)), 0.7, 2.5), x, rtol=1e-12, atol=1e-12)


def test_derivatives_of_every_order_are_taken_with_the_adjoint():
    K = FiniteDifferences(3, 4)
    x, z = random(2, 1, 3, 4).requires_grad_(), random(2, 1, 2, 3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: K(x).sin(), x)
    assert torch.autograd.gradcheck(lambda z: K.adjoint(z).sin(), z)
    assert torch.autograd.gradgradcheck(lambda x: K(x).sin(), x)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FiniteDifferences(0, 3), "height: got 0"),
        (
            lambda: FiniteDifferences(2, 3)(torch.ones(1, 1, 3, 2)),
            r"x: got shape \(1, 1, 3, 2\), expected shape \(B, C, 2",
        ),
        (lambda: FiniteDifferences(2, 3)(torch.ones(2, 3)), r"x: got shape \(2, 3\)"),
        (
            lambda: FiniteDifferences(2, 3).adjoint(torch.ones(1, 1, 2, 3)),
            r"z: got shape .* expected shape \(B, C, 2, 2",
        ),
        (lambda: Mask(torch.tensor([0.0, 0.5])), "mask: got entries other than 0 and 1"),
        (lambda: Mask([0, 1]), "mask: got list"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=r"^" + words):
        call()
