"""The square-root lasso, ||Ax - b|| without a square: a second-order cone; data change."""

import clarabel
import numpy as np

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import L1, GroupNorm, Shifted

from .base import Program, Sample, generator_of, minimise_sparse, solve_program, tensor

SIZES = {"small": (30, 10), "medium": (80, 50), "large": (120, 200)}  # rows, columns
WEIGHT = 0.3


def sample(size, batch, generator):
    (m, n), shared = SIZES[size], generator_of(0)
    A = shared.normal(size=(m, n)) / np.sqrt(m)
    truth = generator.normal(size=(batch, n)) * (generator.random((batch, n)) < 0.1)
    b = truth @ A.T + 0.1 * generator.normal(size=(batch, m))
    tensors = tensor(A, b, np.zeros((batch, n)))

    def build():
        A, b, zero = tensors
        return Composite(L1(WEIGHT), (Shifted(GroupNorm(1.0, axes=1), b), Matrix(A)), start=zero)

    total, eye = 2 * n + 1, np.eye(n)  # x, t >= |x|, and s >= ||Ax - b||
    rows = np.block([[eye, -eye, np.zeros((n, 1))], [-eye, -eye, np.zeros((n, 1))]])
    G = np.zeros((m + 1, total))
    G[0, -1], G[1:, :n] = -1, -A
    q, l, u = np.concatenate([np.zeros(n), np.full(n, WEIGHT), [1]]), np.full(2 * n, -np.inf), np.zeros(2 * n)
    shared_data = {"P": np.zeros((total, total)), "q": q, "A": rows, "l": l, "u": u, "G": G}
    cones = (clarabel.SecondOrderConeT(m + 1),)
    programs = [Program(**shared_data, h=np.append(0, -each), cones=cones) for each in b]

    def solve(i):
        x0 = solve_program(programs[i]).x[:n]
        return minimise_sparse(lambda x: (tensors[0] @ x - tensors[1][i]).norm(), x0, WEIGHT)

    return Sample(
        build=build,
        programs=programs,
        shape=(n,),
        objective=lambda i, x: np.linalg.norm(A @ x - b[i]) + WEIGHT * np.abs(x).sum(),
        solve=solve,
    )
