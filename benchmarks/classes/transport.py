"""Entropic optimal transport as its dual, values of its own in both potentials; marginals and costs change."""

import numpy as np
import torch

from lmd.core.batching import to_double
from lmd.problems import Problem

from .base import Reference, Sample, minimise_smooth, tensor

SIZES = {"small": (8, 10), "medium": (20, 30), "large": (50, 60)}  # points of both marginals
ENTROPY = 0.1


class Potentials(Problem):
    """e sum exp((f_i + g_j - C_ij) / e) - a'f - b'g; x holds f and g."""

    batched = ("C", "marginals")

    def __init__(self, C, marginals):
        self.C, self.marginals = C, marginals

    def value(self, x):
        return ENTROPY * self.plan(x).sum((1, 2)) - (self.marginals * x).sum(1)

    def plan(self, x):
        n = self.C.shape[1]
        return ((x[:, :n, None] + x[:, None, n:] - self.C) / ENTROPY).exp()

    def start(self):
        return torch.zeros_like(self.marginals)

    def double(self):
        return to_double(self)


def feasible(plan, a, b):
    """Return the plan scaled and filled up to its marginals (Altschuler, Weed and Rigollet 2017)."""
    plan = plan * np.minimum(a / plan.sum(1), 1)[:, None]
    plan = plan * np.minimum(b / plan.sum(0), 1)
    left, over = a - plan.sum(1), b - plan.sum(0)
    return plan + np.outer(left, over) / max(left.sum(), 1e-300)


def sample(size, batch, generator):
    n, m = SIZES[size]
    x, y = generator.random((batch, n, 2)), generator.random((batch, m, 2))
    C = np.square(x[:, :, None] - y[:, None]).sum(axis=3)
    a, b = (0.1 + generator.random((batch, k)) for k in (n, m))
    a, b = a / a.sum(axis=1, keepdims=True), b / b.sum(axis=1, keepdims=True)
    tensors = tensor(C, np.concatenate([a, b], axis=1))

    def part(i):
        return Potentials(*(each[i : i + 1] for each in tensors))

    def solve(i):  # minus the cost of a feasible plan is a lower bound
        x = minimise_smooth(lambda x: part(i).value(x[None])[0], np.zeros(n + m), 1e-9).x
        plan = feasible(part(i).plan(tensor(x)[None])[0].numpy(), a[i], b[i])
        cost = (plan * C[i]).sum() + ENTROPY * (plan * (np.log(plan) - 1)).sum()
        return Reference(x, float(part(i).value(tensor(x)[None])), -cost)

    return Sample(
        build=lambda: Potentials(*tensors),
        shape=(n + m,),
        objective=lambda i, x: float(part(i).value(tensor(x)[None])),
        solve=solve,
        kind="transport",
        arrays=[{"C": C[i], "a": a[i], "b": b[i], "entropy": ENTROPY} for i in range(batch)],
        point=lambda generator: 0.1 * generator.normal(size=n + m),
    )
