import pytest
import torch

from lmd.errors import InputError
from lmd.terms import Quadratic
from lmd.testing.terms import TermConformance, normal


def matrices(*shape, dtype, generator):
    root = normal(*shape, 4, 4, dtype=torch.float64, generator=generator)
    return (root @ root.mT + 0.3 * torch.eye(4, dtype=torch.float64)).to(dtype)


class TestQuadratic(TermConformance):
    def make_term(self, batch, dtype, generator):
        P = matrices(dtype=dtype, generator=torch.Generator().manual_seed(5))
        return Quadratic(P, normal(batch, 4, dtype=dtype, generator=generator))

    def points(self, term, batch, dtype, generator):
        return normal(batch, 4, dtype=dtype, generator=generator)


class TestMatrixForEach(TestQuadratic):
    def make_term(self, batch, dtype, generator):
        q = normal(batch, 4, dtype=dtype, generator=generator)
        return Quadratic(matrices(batch, dtype=dtype, generator=generator), q)


@pytest.mark.parametrize(
    ("P", "reason"),
    [
        (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
        (torch.ones(2, 2), "positive definite"),
        (torch.ones(2, 3), "square"),
        (torch.eye(3), "to go with q"),
    ],
)
def test_what_is_no_positive_definite_matrix_is_refused(P, reason):
    with pytest.raises(InputError, match=reason):
        Quadratic(P, torch.zeros(1, 2))


def test_values_that_cancel_are_off_by_no_more_than_their_rounding():
    exact = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2.0**-20]], dtype=torch.float64)
    z = torch.tensor([[2.0**30 + 1, -(2.0**30)]], dtype=torch.float64)
    term = Quadratic(exact, torch.full((1, 2), 0.1, dtype=torch.float64))
    whole = [int(entry) for entry in z[0]]
    form = (whole[0] + whole[1]) ** 2 * 2**20 + whole[1] ** 2  # 2^20 z'Pz, in whole numbers
    truth = form / 2**21 + 0.1 * (whole[0] + whole[1])
    assert abs(float(term.value(z)) - truth) <= float(term.value_rounding(z)) < 1e6
