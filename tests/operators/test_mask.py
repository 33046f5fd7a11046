import pytest
import torch
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.operators import Mask
from lmd.testing.operators import OperatorConformance


def some(*shape):
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) > 0.4


class TestAMaskForEachInstance(OperatorConformance):
    def make_operator(self, batch, dtype):
        return Mask(some(batch, 1, 4, 5).to(dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, 4, 5, dtype=dtype, generator=generator)


class TestOneMaskOfTrueAndFalse(OperatorConformance):
    def make_operator(self, batch, dtype):
        return Mask(some(1, 6))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 6, dtype=dtype, generator=generator)


def test_by_hand():
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    mask = torch.tensor([[1, 0, 1], [0, 0, 1]])
    assert_close(Mask(mask)(x), torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 6.0]]))


def test_a_mask_of_more_digits_does_not_change_the_dtype():
    assert Mask(torch.ones(1, 2, dtype=torch.float64))(torch.ones(1, 2)).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Mask(torch.tensor([0.0, 0.5])), "mask: got entries other than 0 and 1"),
        (lambda: Mask([0, 1]), "mask: got list"),
        (lambda: Mask(torch.ones(4, 5))(torch.ones(2, 3, 4, 5)), r"x: got shape \(2, 3, 4, 5\), expected a shape"),
        (
            lambda: Mask(torch.ones(4, 5))(torch.ones(1, 5)),
            r"x: got shape \(1, 5\), expected a shape that the mask \(4, 5",
        ),
    ],
)
def test_bad_arguments(call, words):
    with pytest.raises(InputError, match=r"^" + words):
        call()
