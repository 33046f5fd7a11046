"""Logistic regression with a ridge, given as values alone; rows and labels change."""

import numpy as np
import torch

from lmd.core.batching import to_double
from lmd.problems import Problem

from .base import Sample, minimise_smooth, tensor

SIZES = {"small": (5, 50), "medium": (20, 100), "large": (50, 300)}  # features, rows
RIDGE = 1e-2


class Logistic(Problem):
    """The mean of log(1 + exp(-z)) over margins z, plus the ridge."""

    batched = ("rows",)

    def __init__(self, rows):
        self.rows = rows

    def value(self, x):
        return torch.nn.functional.softplus(-(self.rows @ x[:, :, None])[:, :, 0]).mean(1) + ridge(x).sum(1)

    @property
    def strong_convexity(self):
        return torch.tensor(RIDGE, dtype=self.rows.dtype)

    def start(self):
        return self.rows.new_zeros(len(self.rows), self.rows.shape[2])

    def double(self):
        return to_double(self)


def ridge(x):
    return RIDGE / 2 * x.square()


def sample(size, batch, generator):
    n, m = SIZES[size]
    features, truth = generator.normal(size=(batch, m, n)), generator.normal(size=(batch, n))
    sign = np.where(np.einsum("bmn,bn->bm", features, truth) + generator.logistic(size=(batch, m)) > 0, 1.0, -1.0)
    rows = tensor(sign[:, :, None] * features)

    def function(i):
        return lambda x: torch.nn.functional.softplus(-(rows[i] @ x)).mean() + ridge(x).sum()

    return Sample(
        build=lambda: Logistic(rows),
        shape=(n,),
        objective=lambda i, x: float(function(i)(tensor(x))),
        solve=lambda i: minimise_smooth(function(i), np.zeros(n), RIDGE),
        kind="logistic",
        arrays=[{"features": features[i], "labels": sign[i], "ridge": RIDGE} for i in range(batch)],
    )
