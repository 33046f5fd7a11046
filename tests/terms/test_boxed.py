import pytest
import torch

from lmd.errors import InputError
from lmd.terms import Absolute, KullbackLeibler, Squares
from lmd.terms.wrappers import Boxed
from lmd.testing.terms import OFFSET, TermConformance, normal, units


class TestBoxedAbsolute(TermConformance):
    ends = (-1.5, 1.2)

    def make_term(self, batch, dtype, generator):
        y = normal(batch, 2, 3, dtype=dtype, generator=generator).clamp(*self.ends)
        weight = torch.rand(batch, 2, 3, dtype=torch.float64, generator=generator).to(dtype)
        weight[:, 0, 0] = 0
        return Boxed(Absolute(y, weight), torch.full((batch,), self.ends[0], dtype=dtype), self.ends[1])

    def _near(self, v):
        """Outside the box the value is that of the term alone: neighbours are inside."""
        return (w.clamp(*self.ends) for w in super()._near(v))

    def points(self, term, batch, dtype, generator):
        share = torch.rand(batch, 2, 3, dtype=torch.float64, generator=generator).to(dtype)
        low, high = term.box._ends(share)
        return low.lerp(high, 0.05 + 0.9 * share)

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        return Boxed(Absolute(y, 0.7), y - 40, y + 40), y + units(batch, 4, dtype=dtype, generator=generator)


class TestBoxedCounts(TestBoxedAbsolute):
    ends = (0.0, 4.0)

    def make_term(self, batch, dtype, generator):
        y = torch.randint(0, 4, (batch, 2, 3), generator=generator).to(dtype)
        return Boxed(KullbackLeibler(y), *self.ends)

    def make_offset(self, batch, dtype, generator):
        return None


class TestBoxedLostSquares(TestBoxedAbsolute):
    ends = (-0.8, 1.1)

    def make_term(self, batch, dtype, generator):
        weight = torch.tensor([[1.0, 0.0, 2.0], [1.0, 1.0, 0.0]], dtype=dtype).expand(batch, 2, 3)
        return Boxed(Squares(normal(batch, 2, 3, dtype=dtype, generator=generator), 0.7, weight), *self.ends)

    def make_offset(self, batch, dtype, generator):
        y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
        return Boxed(Squares(y, 0.7), y - 40, y + 40), y + units(batch, 4, dtype=dtype, generator=generator)


def test_ends_are_finite_and_in_order():
    for low, high in ((1.0, 0.0), (0.0, torch.inf), (torch.tensor([0.0]), float("nan"))):
        with pytest.raises(InputError, match=r"\Alow, high: got [^\n]+, expected (finite )?low <= high\Z"):
            Boxed(Squares(torch.zeros(1, 2)), low, high)
