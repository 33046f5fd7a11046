import pytest
import torch
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.operators import Matrix
from lmd.testing.operators import OperatorConformance


def random(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


class TestOneMatrix(OperatorConformance):
    def make_operator(self, batch, dtype):
        return Matrix(random(4, 6).to(dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 6, dtype=dtype, generator=generator)


class TestAMatrixForEachInstance(OperatorConformance):
    def make_operator(self, batch, dtype):
        return Matrix(random(batch, 5, 3).to(dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


def test_the_norm_is_the_largest_singular_value_of_all():
    A = random(3, 5, 4)
    assert Matrix(A).norm == pytest.approx(max(float(torch.linalg.svdvals(a)[0]) for a in A), rel=1e-11)
    assert Matrix(A).norm >= float(torch.linalg.matrix_norm(A, 2).max())
    assert Matrix(A).select(1).norm == pytest.approx(float(torch.linalg.svdvals(A[1])[0]), rel=1e-11)


def test_a_batch_of_equal_matrices_is_one_matrix():
    A, x = random(5, 4), random(3, 4)
    assert_close(Matrix(A.expand(3, 5, 4))(x), Matrix(A)(x))


def test_the_norm_of_0_is_positive():
    assert Matrix(torch.zeros(2, 3)).norm > 0  # steps divide by it


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Matrix(torch.ones(3)), r"A: got shape \(3,\), expected a matrix \(m, d\), or one for each"),
        (lambda: Matrix(torch.ones(3, 0)), r"A: got shape \(3, 0\)"),
        (lambda: Matrix(torch.full((2, 2), torch.nan)), "A: got 4 non-finite entries"),
        (lambda: Matrix(random(4, 6))(random(2, 4)), r"x: got shape \(2, 4\), expected shape \(B, 6\)"),
        (lambda: Matrix(random(4, 6)).adjoint(random(2, 6)), r"z: got shape \(2, 6\), expected shape \(B, 4\)"),
        (lambda: Matrix(random(3, 4, 6))(random(2, 6)), r"x: got shape \(2, 6\), expected shape \(3, 6\)"),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=r"^" + words):
        call()
