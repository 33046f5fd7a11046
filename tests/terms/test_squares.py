import pytest
import torch

from lmd.errors import InputError
from lmd.terms import Squares
from lmd.terms.squares import MaskedSquares
from lmd.terms.wrappers import Boxed
from lmd.testing.terms import OFFSET, TermConformance, normal, units


class TestSquares(TermConformance):
    def make_term(self, batch, dtype, generator):
        return Squares(normal(batch, 2, 3, dtype=dtype, generator=generator), scale=0.5)

    def points(self, term, batch, dtype, generator):
        return normal(batch, 2, 3, dtype=dtype, generator=generator)

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        return Squares(y, scale=0.01), y + units(batch, 4, dtype=dtype, generator=generator)


class TestWeightedSquares(TestSquares):
    def make_term(self, batch, dtype, generator):
        y = normal(batch, 2, 3, dtype=dtype, generator=generator)
        scale = torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype)
        weight = torch.rand(batch, 1, 3, dtype=torch.float64, generator=generator).to(dtype) + 0.1
        return Squares(y, scale, weight)


class TestSquaresWithoutSomeEntries(TestSquares):
    def make_term(self, batch, dtype, generator):
        y = normal(batch, 2, 3, dtype=dtype, generator=generator)
        return Squares(y, 1.5, torch.tensor([1.0, 0.0, 2.0], dtype=dtype).expand(batch, 1, 3))


def test_masked_squares_are_squares_in_a_box():
    generator = torch.Generator().manual_seed(0)
    y, x, u = (torch.rand(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = (torch.rand(5, 4, generator=generator) > 0.4).double()
    term = MaskedSquares(y, mask, 0.5)
    other = Boxed(Squares(y, 0.5, term.mask), term.low, term.high)
    u, x = u - 0.5, term.nearest(x)
    torch.testing.assert_close(term.value(x), other.value(x))
    torch.testing.assert_close(term.prox(x, 0.3), other.prox(x, 0.3))
    torch.testing.assert_close(term.tilted_minimiser(u), other.tilted_minimiser(u))
    torch.testing.assert_close(term.conjugate(u), other.conjugate(u))
    torch.testing.assert_close(term.residual(x, -u), other.residual(x, -u))


def test_what_lies_outside_the_box_has_a_finite_value_and_a_violation():
    term = MaskedSquares(torch.tensor([[[0.0, 1.0]]]), torch.ones(2))
    z = torch.tensor([[[4.0, -3.0]]])
    assert term.value(z) == 32 and term.violation(z) == 18**0.5


def test_lost_entries_of_any_size_cost_no_digits():
    term = MaskedSquares(torch.tensor([[[0.0, 1.0, 1e9]]]), torch.tensor([1, 1, 0]))
    assert term.residual(torch.tensor([[[0.0, 1.0, 0.25]]]), torch.tensor([[[0.0, 0.0, 1.0]]])) == 0.75


def test_the_best_multiple_is_the_top_of_a_parabola():
    term, p = Squares(torch.tensor([[2.0, 0.0]]), 0.5), torch.tensor([[-1.0, 1.0]])
    assert term.best_multiple(p, 10.0) == 1.0
    assert term.best_multiple(p, 0.25) == 0.25
    assert term.best_multiple(-p, 10.0) == -1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": -1.0}, "scale: got -1.0, expected a positive number"),
        ({"scale": torch.ones(3)}, r"scale: got shape \(3,\), expected one number, one per instance \(2,\)"),
        ({"weight": -torch.ones(2, 4)}, "weight: got -1, expected numbers of 0 or more"),
        ({"weight": torch.ones(2, 4, dtype=torch.float64)}, "weight: got torch.float64"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        Squares(torch.zeros(2, 4), **arguments)


class TestMaskedSquares(TermConformance):
    def make_term(self, batch, dtype, generator):
        y = normal(batch, 2, 5, dtype=dtype, generator=generator)
        y[..., 0], y[..., 1] = -1.6, 1.6  # the ends of the box
        return MaskedSquares(y, torch.tensor([1, 1, 0, 1, 0]), scale=0.5)

    def points(self, term, batch, dtype, generator):
        return term.nearest(0.7 * normal(batch, 2, 5, dtype=dtype, generator=generator))

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 1, 4, dtype=dtype, generator=generator)
        term = MaskedSquares(y, torch.tensor([1, 0, 1, 1]), scale=0.01)
        return term, term.nearest(y + units(batch, 1, 4, dtype=dtype, generator=generator))

    def _near(self, v):
        """Outside the box the value is that of the squares alone: neighbours are inside."""
        return (v.clamp(-1.5, 1.5).lerp(w.clamp(-1.5, 1.5), 0.9) for w in super()._near(v))


@pytest.mark.parametrize("size", [(9,), (6, 7), (5, 4, 6)], ids=str)
def test_lost_entries_are_guessed_from_kept_ones_around(size):
    mask = torch.ones(size)
    mask.flatten()[mask.numel() // 2] = 0
    term = MaskedSquares(torch.full((2, 3, *size), 0.25), mask)
    z = torch.rand(2, 3, *size)
    torch.testing.assert_close(term.fill_unknown(z), torch.where(mask > 0, z, 0.25))
