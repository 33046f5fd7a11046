import torch

from lmd.terms import NegativeEntropy
from lmd.testing.terms import TermConformance, normal


class TestNegativeEntropy(TermConformance):
    def make_term(self, batch, dtype, generator):
        return NegativeEntropy(0.7)

    def points(self, term, batch, dtype, generator):
        return 0.5 + normal(batch, 2, 3, dtype=dtype, generator=generator).abs()

    def _near(self, v):
        """Where it is finite."""
        return (w.clamp(min=0) for w in super()._near(v))


def test_the_smallest_value_is_where_the_slope_is_0():
    z = NegativeEntropy(2.0).tilted_minimiser(torch.zeros(1, 3))
    torch.testing.assert_close(NegativeEntropy(2.0).subgradient(z), torch.zeros(1, 3), atol=1e-6, rtol=0)
