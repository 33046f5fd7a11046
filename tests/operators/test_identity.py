import torch

from lmd.operators import Identity
from lmd.testing.operators import OperatorConformance


class TestIdentity(OperatorConformance):
    def make_operator(self, batch, dtype):
        return Identity()

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 2, 3, 4, dtype=dtype, generator=generator)

    def test_it_changes_nothing(self):
        x = torch.randn(2, 3)
        assert torch.equal(Identity()(x), x) and torch.equal(Identity().adjoint(x), x)
        assert Identity().norm == 1
