"""Logistic regression with many classes and a ridge, given as values alone; features and labels change."""

import numpy as np
import torch

from lmd.core.batching import to_double
from lmd.problems import Problem

from .base import Sample, minimise_smooth, tensor

SIZES = {"small": (4, 3, 50), "medium": (10, 4, 100), "large": (20, 5, 300)}  # features, classes, rows
RIDGE = 1e-2


class Multinomial(Problem):
    """The mean cross entropy of scores features @ x, plus the ridge; x `(B, features, classes)`."""

    batched = ("features", "labels")

    def __init__(self, features, labels):
        self.features, self.labels = features, labels

    def value(self, x):
        scores = self.features @ x
        losses = scores.logsumexp(2) - (scores * self.labels).sum(2)
        return losses.mean(1) + RIDGE / 2 * x.square().sum((1, 2))

    @property
    def strong_convexity(self):
        return torch.tensor(RIDGE, dtype=self.features.dtype)

    def start(self):
        return self.features.new_zeros(len(self.features), self.features.shape[2], self.labels.shape[2])

    def double(self):
        return to_double(self)


def sample(size, batch, generator):
    n, k, m = SIZES[size]
    features, truth = generator.normal(size=(batch, m, n)), generator.normal(size=(batch, n, k))
    classes = (features @ truth + generator.gumbel(size=(batch, m, k))).argmax(axis=2)
    tensors = tensor(features, np.eye(k)[classes])

    def function(i):
        part = Multinomial(*(each[i : i + 1] for each in tensors))
        return lambda x: part.value(x.reshape(1, n, k))[0]

    return Sample(
        build=lambda: Multinomial(*tensors),
        shape=(n, k),
        objective=lambda i, x: float(function(i)(tensor(x))),
        solve=lambda i: minimise_smooth(function(i), np.zeros(n * k), RIDGE),
        kind="multinomial",
        arrays=[{"features": features[i], "labels": classes[i], "ridge": RIDGE, "k": k} for i in range(batch)],
    )
