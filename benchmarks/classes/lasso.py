"""The lasso of OSQP's benchmark, a tenth of the largest weight; data and weight change."""

import numpy as np

from lmd.problems import Lasso

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": (30, 20), "medium": (100, 50), "large": (100, 200)}  # rows, columns


def sample(size, batch, generator):
    (m, n), shared = SIZES[size], generator_of(0)
    A = shared.normal(size=(m, n)) / np.sqrt(m)
    truth = generator.normal(size=(batch, n)) * (generator.random((batch, n)) < 0.2)
    b = truth @ A.T + 0.1 * generator.normal(size=(batch, m))
    weight = 0.1 * np.abs(b @ A).max(axis=1)
    tensors = tensor(A, b, weight)
    P, rows = np.zeros((2 * n + m, 2 * n + m)), np.zeros((m + 2 * n, 2 * n + m))  # of x, t >= |x| and y = Ax - b
    P[2 * n :, 2 * n :] = np.eye(m)
    rows[:m, :n], rows[:m, 2 * n :] = A, -np.eye(m)
    rows[m : m + n, : 2 * n] = np.hstack([np.eye(n), -np.eye(n)])
    rows[m + n :, : 2 * n] = np.hstack([-np.eye(n), -np.eye(n)])

    def program(i):
        q = np.concatenate([np.zeros(n), np.full(n, weight[i]), np.zeros(m)])
        l, u = np.append(b[i], np.full(2 * n, -np.inf)), np.append(b[i], np.zeros(2 * n))
        return Program(P=P, q=q, A=rows, l=l, u=u)

    def objective(i, x):
        return 0.5 * np.square(A @ x - b[i]).sum() + weight[i] * np.abs(x).sum()

    return Sample(
        build=lambda: Lasso(*tensors),
        programs=[program(i) for i in range(batch)],
        shape=(n,),
        objective=objective,
        kind="lasso",
        arrays=[{"A": A, "b": b[i], "weight": weight[i], "ridge": 0.0} for i in range(batch)],
    )
