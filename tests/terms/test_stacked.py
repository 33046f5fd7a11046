import pytest
import torch

from lmd.errors import InputError
from lmd.operators import gaussian_kernel
from lmd.problems import TVDeblurring
from lmd.terms import L1, Absolute, GroupNorm, Squares
from lmd.terms.wrappers import Stacked
from lmd.testing.terms import OFFSET, TermConformance, normal, units


class TestStacked(TermConformance):
    scales = (1.0, 0.3)

    def make_term(self, batch, dtype, generator):
        weight = torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype)
        squares = Squares(normal(batch, 3, dtype=dtype, generator=generator), weight)
        return Stacked((GroupNorm(weight, axes=1), squares), ((2, 2), (3,)), self.scales)

    def points(self, term, batch, dtype, generator):
        return normal(batch, 7, dtype=dtype, generator=generator)

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        away = units(batch, 4, dtype=dtype, generator=generator)
        return Stacked((L1(0.3), Squares(y, 0.01)), ((4,), (4,)), (1.0, 0.5)), torch.cat([away, (y + away) / 2], dim=1)


class TestStackedSquares(TestStacked):
    """Which has both constants."""

    def make_term(self, batch, dtype, generator):
        squares = [Squares(normal(batch, n, dtype=dtype, generator=generator), n / 4) for n in (4, 3)]
        squares[0].scale = torch.linspace(0.5, 2.0, batch, dtype=torch.float64).to(dtype)
        return Stacked(squares, ((4,), (3,)), self.scales)


class TestStackedFinite(TestStacked):
    def make_term(self, batch, dtype, generator):
        return Stacked((Squares(normal(batch, 7, dtype=dtype, generator=generator)),), ((7,),))


def test_it_is_the_regulariser_of_deblurring():
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(2, 1, 6, 5, generator=generator, dtype=torch.float64)
    problem = TVDeblurring(y, gaussian_kernel(0.5), weight=0.4, balance=0.3)
    term = Stacked((L1(0.4), Squares(y)), ((1, 2, 6, 5), (1, 6, 5)), (1.0, 0.3))
    z, p = (torch.randn(2, 90, generator=generator, dtype=torch.float64) for _ in range(2))
    theirs = [z.clone(), p.clone()]
    p, q = term.project(p), problem.g.project(theirs[1])
    torch.testing.assert_close(p, q)
    torch.testing.assert_close(term.value(z), problem.g.value(theirs[0]))
    torch.testing.assert_close(term.conjugate(p), problem.g.conjugate(q))
    torch.testing.assert_close(term.residual(z, p), problem.g.residual(theirs[0], q))
    torch.testing.assert_close(term.conjugate_prox(z, 0.7), problem.g.conjugate_prox(theirs[0], 0.7))


def test_parts_are_views():
    term, z = Stacked((L1(), L1()), ((2, 2), (3,))), torch.zeros(2, 7)
    term.split(z)[0][:] = 1
    assert z.sum() == 8


def test_constants_are_those_of_the_weakest_part():
    y = torch.zeros(2, 1)
    term = Stacked((Squares(y, torch.tensor([1.0, 4.0])), Squares(y, 2.0)), ((1,), (1,)))
    assert term.strong_convexity.tolist() == [2.0, 4.0] and term.smoothness.tolist() == [4.0, 8.0]
    assert Stacked((Squares(y), Squares(y, 2.0)), ((1,), (1,)), (1.0, 2.0)).strong_convexity == 1.0
    assert Stacked((Squares(y), Absolute(y)), ((1,), (1,))).strong_convexity is None


def test_bad_arguments_are_named():
    with pytest.raises(InputError, match="scales: got 2 of them, expected 1, one for each part"):
        Stacked((L1(),), ((1,),), (1.0, 2.0))
    with pytest.raises(InputError, match=r"z: got shape \(2, 3\), expected shape \(B, 2\)"):
        Stacked((L1(),), ((2,),)).value(torch.zeros(2, 3))


def test_a_step_for_each_entry_is_taken_apart_like_the_array():
    term = Stacked((L1(1.0), L1(2.0)), ((2,), (3,)), (1.0, 0.5))
    z, steps = torch.tensor([[3.0, -3.0, 3.0, 3.0, 3.0]]), torch.tensor([[1.0, 2.0, 0.1, 0.2, 0.3]])
    one = torch.cat([term.prox(z, float(step))[:, i : i + 1] for i, step in enumerate(steps[0])], dim=1)
    torch.testing.assert_close(term.prox(z, steps), one)
