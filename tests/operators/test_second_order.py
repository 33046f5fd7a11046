import pytest
import torch
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.operators.differences import Bends, Slopes
from lmd.terms.wrappers import join
from lmd.testing.operators import OperatorConformance


class TestSlopes(OperatorConformance):
    kind, shape, spacing, norm_is_tight = Slopes, (4, 3), (1.0, 2.0), False

    def make_operator(self, batch, dtype):
        return self.kind(2, self.shape, self.spacing)

    def points(self, batch, dtype, generator):
        count = 2 * (len(self.shape) + 1) * torch.Size(self.shape).numel()
        return torch.randn(batch, count, dtype=dtype, generator=generator)


class TestBends(TestSlopes):
    kind = Bends


class TestBendsOfSignals(TestBends):
    shape, spacing = (5,), None


class TestBendsOfVolumes(TestBends):
    shape, spacing = (2, 3, 2), (2.0, 1.0, 0.5)


@pytest.mark.parametrize("shape", [(5,), (1, 4), (4, 5), (3, 4, 2)])
def test_a_plane_has_constant_slopes_and_no_bends(shape):
    grid = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in shape), indexing="ij")
    slopes = torch.tensor([0.3, -0.7, 0.2][: len(shape)], dtype=torch.float64)
    x = sum(h * (s * each) for h, s, each in zip((1.0, 2.0, 4.0), slopes, grid, strict=False))
    operator = Slopes(1, shape, (1.0, 2.0, 4.0)[: len(shape)])
    w = slopes.reshape(-1, *(1,) * len(shape)).expand(-1, *shape)
    X = join((x[None, None], w[None, None]))
    assert float(operator(X).abs().max()) < 1e-14
    assert not bool(Bends(1, shape)(X).any())


def test_by_hand():
    w = torch.zeros(1, 1, 2, 3, 3, dtype=torch.float64)
    w[0, 0, 0, 0, 1], w[0, 0, 1, 0, 0] = 1.0, 2.0
    X = torch.cat([torch.zeros(1, 9, dtype=torch.float64), w.flatten(1)], dim=1)
    down, both, right = Bends(1, (3, 3))(X)[0, 0]
    assert_close(down[0], torch.tensor([0.0, -1.0, 0.0], dtype=torch.float64))
    assert_close(right[0], torch.tensor([-2.0, 0.0, 0.0], dtype=torch.float64))
    assert_close(both[0] * 2**0.5, torch.tensor([1.0 - 2.0, -1.0, 0.0], dtype=torch.float64))


def test_arrays_of_another_size():
    with pytest.raises(InputError, match=r"^z: got shape \(1, 5\), expected shape \(B, 27\)$"):
        Slopes(1, (3, 3))(torch.zeros(1, 5))
