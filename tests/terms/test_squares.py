import pytest
import torch

from lmd.errors import InputError
from lmd.problems import TVInpainting
from lmd.terms import BoxedSquares, MaskedSquares, Squares
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


class TestMaskedSquares(TestSquares):
    def make_term(self, batch, dtype, generator):
        y = normal(batch, 2, 3, dtype=dtype, generator=generator)
        return Squares(y, 1.5, torch.tensor([1.0, 0.0, 2.0], dtype=dtype).expand(batch, 1, 3))


class TestBoxedSquares(TermConformance):
    def make_term(self, batch, dtype, generator):
        y = normal(batch, 2, 3, dtype=dtype, generator=generator)
        low = -1.5 - torch.rand(batch, 2, 1, dtype=torch.float64, generator=generator).to(dtype)
        mask = torch.tensor([1.0, 0.0, 2.0], dtype=dtype).expand(batch, 1, 3)
        return BoxedSquares(y, low, -low, scale=0.5, weight=mask)

    def points(self, term, batch, dtype, generator):
        return term._clip(0.7 * normal(batch, 2, 3, dtype=dtype, generator=generator))

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        mask = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=dtype).expand(batch, 4)
        term = BoxedSquares(y, y.amin(1, keepdim=True), y.amax(1, keepdim=True), 0.01, mask)
        return term, term._clip(y + units(batch, 4, dtype=dtype, generator=generator))

    def _near(self, v):
        """Outside the box the value is that of the squares alone: neighbours are inside."""
        return (v.clamp(-1.5, 1.5).lerp(w.clamp(-1.5, 1.5), 0.9) for w in super()._near(v))


class TestBoxOfNumbers(TestBoxedSquares):
    def make_term(self, batch, dtype, generator):
        return BoxedSquares(normal(batch, 2, 3, dtype=dtype, generator=generator), -1.6, 1.6)


def test_boxed_squares_are_the_data_term_of_inpainting():
    generator = torch.Generator().manual_seed(0)
    y, x, u = (torch.rand(2, 3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(3))
    mask = (torch.rand(5, 4, generator=generator) > 0.4).double()
    problem = TVInpainting(y, mask, halved=True)
    term = BoxedSquares(y, problem.low, problem.high, 0.5, problem.mask)
    u = u - 0.5
    torch.testing.assert_close(term.value(x), problem.data_value(x))
    torch.testing.assert_close(term.prox(x, 0.3), problem.data_prox(x, 0.3))
    torch.testing.assert_close(term.tilted_minimiser(u), problem.tilted_minimiser(u))
    torch.testing.assert_close(term.tilted_minimum(u), problem.tilted_minimum(u))
    torch.testing.assert_close(term.residual(x, -u), problem.f.residual(x, -u))


def test_what_lies_outside_the_box_has_a_finite_value_and_a_violation():
    term = BoxedSquares(torch.zeros(1, 2), 0.0, 1.0)
    z = torch.tensor([[4.0, -4.0]])
    assert term.value(z) == 32 and term.violation(z) == 5


def test_lost_entries_of_any_size_cost_no_digits():
    y = torch.tensor([[0.5, 1e9]])
    term = BoxedSquares(y, 0.0, 1.0, weight=torch.tensor([[1.0, 0.0]]))
    assert term.residual(torch.tensor([[0.5, 0.25]]), torch.tensor([[0.0, 1.0]])) == 0.75


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


def test_a_box_needs_ends_in_order():
    with pytest.raises(InputError, match=r"low, high: got [^\n]+, expected finite low <= high"):
        BoxedSquares(torch.zeros(2, 4), 1.0, 0.0)


class TestKeptSquares(TestBoxedSquares):
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


@pytest.mark.parametrize("size", [(9,), (6, 7), (5, 4, 6)], ids=str)
def test_lost_entries_are_guessed_from_kept_ones_around(size):
    mask = torch.ones(size)
    mask.flatten()[mask.numel() // 2] = 0
    term = MaskedSquares(torch.full((2, 3, *size), 0.25), mask)
    z = torch.rand(2, 3, *size)
    torch.testing.assert_close(term.guess(z), torch.where(mask > 0, z, 0.25))
