"""l1 trend filtering: piecewise linear signals in noise; data and weights change."""

import numpy as np

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import L1, Squares

from .base import Program, Sample, tensor

SIZES = {"small": 20, "medium": 100, "large": 300}


def sample(size, batch, generator):
    n = SIZES[size]
    slopes = np.where(generator.random((batch, n)) < 4 / n, generator.normal(size=(batch, n)), 0).cumsum(axis=1)
    y = slopes.cumsum(axis=1) * 10 / n + 0.3 * generator.normal(size=(batch, n))
    weight = 1 + 4 * generator.random(batch)
    D = np.diff(np.eye(n), n=2, axis=0)
    tensors = tensor(y, weight, D)

    def build():
        y, weight, D = tensors
        return Composite(Squares(y, 0.5), (L1(weight), Matrix(D)), start=y)

    k = n - 2
    P = np.diag(np.append(np.ones(n), np.zeros(k)))  # of x and t >= |Dx|
    A, l, u = np.block([[D, -np.eye(k)], [-D, -np.eye(k)]]), np.full(2 * k, -np.inf), np.zeros(2 * k)

    def program(i):
        return Program(P=P, q=np.append(-y[i], np.full(k, weight[i])), r=y[i] @ y[i] / 2, A=A, l=l, u=u)

    def objective(i, x):
        return 0.5 * np.square(x - y[i]).sum() + weight[i] * np.abs(D @ x).sum()

    programs = [program(i) for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(n,), objective=objective)
