import pytest
import torch

from lmd.errors import InputError
from lmd.operators import FromFunctions
from lmd.operators.conformance import OperatorConformance

A = torch.randn(7, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def product(x):
    return A.to(x) @ x.flatten()


def transpose(z):
    return (A.to(z).T @ z).reshape(3, 4)


class TestAMatrixAsTwoFunctions(OperatorConformance):
    def make_operator(self, batch, dtype):
        return FromFunctions(product, transpose, (3, 4))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 2, 3, 4, dtype=dtype, generator=generator)


def test_the_norm_is_at_most_a_little_above():
    norm = float(torch.linalg.svdvals(A)[0])
    assert norm <= FromFunctions(product, transpose, (3, 4)).norm <= 1.06 * norm


@pytest.mark.parametrize(
    ("adjoint", "words"),
    [(lambda z: 2 * transpose(z), "<x, A'z> ="), (lambda z: transpose(z).flatten(), r"an answer of shape \(12,\)")],
)
def test_an_adjoint_that_is_none(adjoint, words):
    with pytest.raises(InputError, match=rf"^adjoint: got {words}"):
        FromFunctions(product, adjoint, (3, 4))
