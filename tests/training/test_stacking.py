import pytest
import torch

from lmd.operators import Identity, Matrix
from lmd.problems import Composite, ControlFamily, LeastSquares, SimplexFamily, TVDenoising
from lmd.terms import L1, Squares
from lmd.training.instances import stack_instances


def drawn(sample, count=5):
    return [sample(1, torch.Generator().manual_seed(seed)) for seed in range(count)]


def net(batch, generator):
    X, b = torch.ones(3, 4), torch.randn(batch, 3, generator=generator)
    x0 = torch.randn(batch, 4, generator=generator)
    return Composite(L1(0.5), (Squares(b), Matrix(X)), (Squares(x0), Identity()), start=x0), x0


def picture(batch, generator):
    noisy = torch.rand(batch, 1, 4, 5, generator=generator)
    return TVDenoising(noisy, weight=torch.rand(batch, generator=generator) + 0.1), noisy


@pytest.mark.parametrize("sample", [ControlFamily(horizon=3).sample, SimplexFamily().sample, net, picture])
def test_instances_of_a_class_become_one_batch_with_their_own_values(sample):
    singles = drawn(sample)
    ((problem, x0),) = stack_instances(singles)
    torch.testing.assert_close(problem.value(x0 / 2), torch.cat([each.value(x / 2) for each, x in singles]))
    for i, (each, x) in enumerate(singles):
        torch.testing.assert_close(problem.select(i).value(x / 2), each.value(x / 2))


def test_instances_with_matrices_of_their_own_are_kept_apart():
    def sample(batch, generator):
        hard = torch.rand((), generator=generator) < 0.5
        W = torch.eye(2) * (1.0 + hard)
        return LeastSquares(W, torch.randn(batch, 2, generator=generator)), torch.zeros(batch, 2)

    singles = drawn(sample, 12)
    assert singles[0][0].smoothness > 0  # which is kept with the problem, and not to be stacked
    batches = stack_instances(singles)
    assert len(batches) == 2 and sum(len(x0) for _, x0 in batches) == 12
    whole = torch.cat([problem.value(x0 + 1) for problem, x0 in batches]).sort().values
    torch.testing.assert_close(whole, torch.cat([each.value(x + 1) for each, x in singles]).sort().values)
