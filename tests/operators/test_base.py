import torch
from torch.testing import assert_close

from lmd.operators import LinearOperator
from lmd.terms.base import size_of
from lmd.testing.operators import OperatorConformance


class Sums(LinearOperator):
    """The sums of neighbours, around: no more than what an operator has to say."""

    norm = 2.0

    def _apply(self, x):
        return x + x.roll(1, -1)

    def _adjoint(self, z):
        return z + z.roll(-1, -1)


class TestAnOperatorOfYourOwn(OperatorConformance):
    def make_operator(self, batch, dtype):
        return Sums()

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 5, dtype=dtype, generator=generator)


def test_the_bounds_on_rounding_that_need_nothing_of_their_own():
    x = torch.randn(3, 5)
    expected = 1e4 * torch.finfo(torch.float32).eps * 2 * size_of(x)
    assert_close(Sums().error(x, Sums()(x)), expected)
    assert_close(Sums().adjoint_error(x), expected)


def test_the_derivative_is_the_adjoint_and_not_that_of_the_code():
    class Rounded(Sums):
        def _apply(self, x):
            return super()._apply(x).round()  # autograd through it would be 0

    x = torch.randn(1, 5, dtype=torch.float64, requires_grad=True)
    Rounded()(x).sum().backward()
    assert_close(x.grad, torch.full((1, 5), 2.0, dtype=torch.float64))
