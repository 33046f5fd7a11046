import math

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.solvers import Adam


@pytest.mark.parametrize(("betas", "epsilon"), [((0.9, 0.999), 1e-8), ((0.5, 0.7), 1e-3), ((0.0, 0.0), 1.0)])
def test_against_the_optimiser_of_torch(least_squares, betas, epsilon):
    problem, x0 = least_squares
    x = x0.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05, betas=betas, eps=epsilon)
    for _ in range(10):
        x.grad = problem.subgradient(x.detach())
        optimiser.step()
    assert_close(lmd.run(Adam(0.05, betas, epsilon), problem, x0, iterations=10).x, x.detach())


@pytest.mark.parametrize("betas", [(0.9,), (0.9, 1.0), (-0.1, 0.9), (0.9, math.nan), (0.5, 0.5, 0.5)])
def test_bad_betas(betas):
    with pytest.raises(InputError, match=r"^betas: got .*, expected two numbers in \[0, 1\)$"):
        Adam(0.1, betas)


def test_bad_epsilon():
    with pytest.raises(InputError, match=r"^epsilon: got 0"):
        Adam(0.1, epsilon=0)
