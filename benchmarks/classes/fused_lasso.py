"""The fused lasso: signals that are mostly 0 and piecewise constant, in noise."""

import numpy as np

from lmd.operators import Differences, Identity
from lmd.problems import Composite
from lmd.terms import L1, Squares

from .base import Program, Sample, tensor

SIZES = {"small": 20, "medium": 100, "large": 300}
SPARSE, FLAT = 0.3, 1.0


def sample(size, batch, generator):
    n = SIZES[size]
    jumps = np.where(generator.random((batch, n)) < 5 / n, generator.normal(size=(batch, n)), 0)
    y = 2 * jumps.cumsum(axis=1) + 0.3 * generator.normal(size=(batch, n))
    data = tensor(y)

    def build():
        behind = (L1(SPARSE), Identity()), (L1(FLAT), Differences((n,)))
        return Composite(Squares(data, 0.5), *behind, start=data)

    k, D = 2 * n - 1, np.vstack([np.eye(n), np.diff(np.eye(n), axis=0)])
    P = np.diag(np.append(np.ones(n), np.zeros(k)))  # of x and t >= |Dx|
    A, l, u = np.block([[D, -np.eye(k)], [-D, -np.eye(k)]]), np.full(2 * k, -np.inf), np.zeros(2 * k)
    weights = np.append(np.full(n, SPARSE), np.full(n - 1, FLAT))
    programs = [Program(P=P, q=np.append(-each, weights), r=each @ each / 2, A=A, l=l, u=u) for each in y]

    def objective(i, x):
        return 0.5 * np.square(x - y[i]).sum() + weights @ np.abs(D @ x)

    return Sample(build=build, programs=programs, shape=(n,), objective=objective)
