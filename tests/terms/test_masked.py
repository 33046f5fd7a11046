import pytest
import torch

from lmd.errors import InputError
from lmd.operators import Mask
from lmd.terms import Absolute, KullbackLeibler, Squares
from lmd.testing.terms import TermConformance


def counts(batch, dtype, generator):
    return torch.randint(0, 9, (batch, 2, 3), generator=generator).to(dtype)


def mask_of(batch, generator):
    mask = (torch.rand(batch, 1, 3, dtype=torch.float32, generator=generator) < 0.6).float()
    mask[..., 0], mask[..., 1] = 1, 0
    return mask


class TestKept(TermConformance):
    def make_term(self, batch, dtype, generator):
        return KullbackLeibler(counts(batch, dtype, generator), mask=mask_of(batch, generator))

    def points(self, term, batch, dtype, generator):
        return 5 * torch.rand(batch, 2, 3, dtype=torch.float64, generator=generator).to(dtype) + 0.3


class TestKeptWithBackground(TestKept):
    def make_term(self, batch, dtype, generator):
        return KullbackLeibler(counts(batch, dtype, generator), 0.1, mask_of(batch, generator))


@pytest.mark.parametrize("kind", [Squares, Absolute, KullbackLeibler])
def test_a_misfit_with_lost_entries_is_the_one_behind_a_mask_up_to_what_is_constant(kind):
    generator = torch.Generator().manual_seed(0)
    mask, y = mask_of(2, generator).double(), counts(2, torch.float64, generator)
    whole, x = kind(mask * y), 5 * torch.rand(2, 2, 3, generator=generator, dtype=torch.float64) + 0.1
    term = whole.with_mask(mask)
    torch.testing.assert_close(term.value(x), whole.value(Mask(mask)(x)))
    torch.testing.assert_close(term.subgradient(x), mask * whole.subgradient(mask * x))
    torch.testing.assert_close(term.prox(x, 0.7), torch.where(mask > 0, whole.prox(x, 0.7), x))


def test_lost_entries_count_for_nothing_whatever_they_hold():
    y, mask = torch.tensor([[4.0, 7.0]]), torch.tensor([[1.0, 0.0]])
    term = KullbackLeibler(y).with_mask(mask)
    assert term.value(torch.tensor([[4.0, -3.0]])) == 0 and term.violation(torch.tensor([[4.0, -3.0]])) == 0
    assert term.gauge(torch.tensor([[0.5, 0.1]])) == torch.inf
    assert term.fill_unknown(torch.tensor([[4.0, 2.0]])).tolist() == [[4.0, 2.0]]


def test_guesses_are_means_of_what_is_kept_around():
    y, mask = torch.tensor([[[[1.0, 9.0, 3.0]]]]), torch.tensor([[[[1.0, 0.0, 1.0]]]])
    assert KullbackLeibler(y).with_mask(mask).fill_unknown(torch.zeros_like(y)).tolist() == [[[[0.0, 2.0, 0.0]]]]


def test_masks_that_do_not_fit():
    with pytest.raises(InputError, match=r"mask.*\(2, 3\)"):
        KullbackLeibler(torch.ones(2, 3), mask=torch.ones(3))
    with pytest.raises(InputError, match="mask"):
        KullbackLeibler(torch.ones(2, 3), mask=torch.full((2, 3), 0.5))
