import pytest
import torch

from lmd.errors import InputError
from lmd.problems.simplex import kl_divergence
from lmd.terms import KullbackLeibler
from lmd.terms.entropy import divergence
from lmd.testing.terms import TermConformance


def counts(batch, dtype, generator):
    y = torch.randint(0, 9, (batch, 2, 3), generator=generator).to(dtype)
    y[..., 0] = 0
    return y


class TestKullbackLeibler(TermConformance):
    def make_term(self, batch, dtype, generator):
        return KullbackLeibler(counts(batch, dtype, generator))

    def points(self, term, batch, dtype, generator):
        return 5 * torch.rand(batch, 2, 3, dtype=torch.float64, generator=generator).to(dtype) + 0.3


class TestWithBackground(TestKullbackLeibler):
    def make_term(self, batch, dtype, generator):
        return KullbackLeibler(counts(batch, dtype, generator), 0.1)

    def points(self, term, batch, dtype, generator):
        return super().points(term, batch, dtype, generator) - 0.25


class TestWithBackgroundPerInstance(TestWithBackground):
    def make_term(self, batch, dtype, generator):
        background = torch.linspace(0.1, 0.5, batch, dtype=torch.float64).to(dtype)
        return KullbackLeibler(counts(batch, dtype, generator), background)


def test_the_divergence_is_that_of_the_simplex():
    x, y = torch.rand(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(divergence(x, y).sum(dim=1), kl_divergence(x, y))


def test_large_counts_keep_their_digits():
    y = torch.tensor([[2.0**24, 3e5]])
    z = y * (1 + 3e-4)
    exact = KullbackLeibler(y.double())
    torch.testing.assert_close(KullbackLeibler(y).value(z).double(), exact.value(z.double()), rtol=1e-3, atol=0)
    assert KullbackLeibler(y).value(z) > 0 and KullbackLeibler(y).value(y) == 0


def test_edges_of_the_domain():
    term = KullbackLeibler(torch.tensor([[0.0], [2.0], [0.0]]))
    z = torch.tensor([[0.0], [0.0], [-1.0]])
    assert term.value(z).tolist() == [0.0, torch.inf, torch.inf]
    assert term.violation(z).tolist() == [0.0, 0.0, 1.0]
    assert term.prox(torch.full((3, 1), -5.0), 1.0)[::2].tolist() == [[0.0], [0.0]]
    assert term.prox(torch.full((3, 1), 1.0), 1.0)[::2].tolist() == [[0.0], [0.0]]  # where the root is 0 twice
    assert term.project(torch.full((3, 1), 5.0))[::2].tolist() == [[1.0], [1.0]]
    assert torch.isfinite(term.conjugate(term.project(torch.full((3, 1), 5.0)))).all()


@pytest.mark.parametrize(("y", "background"), [(-1.0, 0.0), (1.0, -0.5)])
def test_counts_are_not_negative(y, background):
    with pytest.raises(InputError, match=r"\A(y|background): got -[^\n]+, expected numbers of 0 or more\Z"):
        KullbackLeibler(torch.full((1, 2), y), background)
