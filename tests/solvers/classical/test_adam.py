import torch
from torch.testing import assert_close

import lmd
from lmd.solvers import Adam


def test_against_the_optimiser_of_torch(least_squares):
    problem, x0 = least_squares
    x = x0.clone().requires_grad_()
    optimiser = torch.optim.Adam([x], lr=0.05)
    for _ in range(10):
        x.grad = problem.subgradient(x.detach())
        optimiser.step()
    assert_close(lmd.run(Adam(0.05), problem, x0, iterations=10).x, x.detach())
