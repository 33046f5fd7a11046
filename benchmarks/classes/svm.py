"""Support vector machines of OSQP's benchmark, without an intercept; rows and labels change."""

import numpy as np

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import Hinge, Squares

from .base import Program, Sample, tensor

SIZES = {"small": (5, 50), "medium": (20, 100), "large": (30, 300)}  # features, rows
C = 1.0


def sample(size, batch, generator):
    n, m = SIZES[size]
    sign = np.where(generator.random((batch, m)) < 0.5, -1.0, 1.0)
    features = generator.normal(size=(batch, m, n)) / np.sqrt(n) + sign[:, :, None] / n
    rows, zero = sign[:, :, None] * features, np.zeros((batch, n))
    tensors = tensor(rows, zero)

    def build():
        rows, zero = tensors
        return Composite(Squares(zero, 0.5), (Hinge(C), Matrix(rows)), start=zero)

    P = np.diag(np.append(np.ones(n), np.zeros(m)))  # of x and slacks, at least 1 - z and 0
    q, low = np.append(np.zeros(n), np.full(m, C)), np.append(np.full(n, -np.inf), np.zeros(m))

    def program(i):
        return Program(P=P, q=q, A=np.hstack([rows[i], np.eye(m)]), l=np.ones(m), u=np.full(m, np.inf), low=low)

    def objective(i, x):
        return 0.5 * x @ x + C * np.maximum(1 - rows[i] @ x, 0).sum()

    arrays = [{"features": features[i], "labels": sign[i], "C": C} for i in range(batch)]
    programs = [program(i) for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(n,), objective=objective, kind="svm", arrays=arrays)
