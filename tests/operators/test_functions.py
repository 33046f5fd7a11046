import pytest
import torch

from lmd.errors import InputError
from lmd.operators import FromFunctions
from lmd.testing.operators import OperatorConformance

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


def random_matrix(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, dtype=torch.float64, generator=generator) / columns**0.5


@pytest.mark.parametrize("columns", [20, 300])  # along every axis, and along random directions
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_of_an_adjoint_that_is_off_is_bounded(columns, dtype):
    exact, off, z = (random_matrix(*shape, seed) for shape, seed in (((9, columns), 0), ((9, columns), 1), ((2, 9), 2)))
    exact = exact.to(dtype).double()
    for size in [0.0, *(10.0**power for power in range(-16, -2))]:
        wrong = (exact + size * off).to(dtype)
        operator = FromFunctions(lambda x: exact.to(dtype) @ x.to(dtype), lambda z: wrong.T @ z.to(dtype), (columns,))  # noqa: B023
        true = (operator._adjoint(z[:, None])[:, 0] - z @ exact).norm(dim=1)
        found = operator.adjoint_error(z[:, None])
        assert bool((true <= found).all())
        least = 1e-10 if dtype == torch.float64 else 1e-4
        assert bool((found <= 20 * true + least).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_error_of_functions_covers_the_precision_that_they_compute_in(dtype):
    exact = random_matrix(40, 500, 0).to(dtype).double()
    operator = FromFunctions(lambda x: exact.to(dtype) @ x.to(dtype), lambda z: exact.to(dtype).T @ z.to(dtype), (500,))
    for seed in range(20):
        x = torch.rand(1, 1, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        z = operator(x)
        assert float((z[0, 0] - exact @ x[0, 0]).norm()) <= float(operator.error(x, z)) < 1e-4 * float(z.norm())
