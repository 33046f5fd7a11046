"""The elastic net, rows and data of its own for each instance."""

import numpy as np

from lmd.operators import Identity, Matrix
from lmd.problems import Composite
from lmd.terms import L1, Squares

from .base import Program, Sample, tensor

SIZES = {"small": (40, 20), "medium": (100, 60), "large": (200, 150)}  # rows, columns
RIDGE = 0.1


def sample(size, batch, generator):
    m, n = SIZES[size]
    A = generator.normal(size=(batch, m, n)) / np.sqrt(m)
    A = A + 0.5 * A[:, :, :1]  # correlated columns, which it is for
    truth = generator.normal(size=(batch, n)) * (generator.random((batch, n)) < 0.2)
    b = np.einsum("bmn,bn->bm", A, truth) + 0.1 * generator.normal(size=(batch, m))
    weight = 0.1 * np.abs(np.einsum("bmn,bm->bn", A, b)).max(axis=1)
    tensors = tensor(A, b, weight, np.zeros((batch, n)))

    def build():
        A, b, weight, zero = tensors
        return Composite(L1(weight), (Squares(b, 0.5), Matrix(A)), (Squares(zero, RIDGE / 2), Identity()), start=zero)

    rows = np.block([[np.eye(n), -np.eye(n)], [-np.eye(n), -np.eye(n)]])  # of x and t >= |x|

    def program(i):
        P, q = np.zeros((2 * n, 2 * n)), np.append(-b[i] @ A[i], np.full(n, weight[i]))
        P[:n, :n] = A[i].T @ A[i] + RIDGE * np.eye(n)
        return Program(P=P, q=q, r=b[i] @ b[i] / 2, A=rows, l=np.full(2 * n, -np.inf), u=np.zeros(2 * n))

    def objective(i, x):
        return 0.5 * np.square(A[i] @ x - b[i]).sum() + weight[i] * np.abs(x).sum() + RIDGE / 2 * x @ x

    return Sample(
        build=build,
        programs=[program(i) for i in range(batch)],
        shape=(n,),
        objective=objective,
        kind="lasso",
        arrays=[{"A": A[i], "b": b[i], "weight": weight[i], "ridge": RIDGE} for i in range(batch)],
    )
