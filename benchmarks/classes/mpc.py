"""Model-predictive control with the states as variables; state, dynamics and weights that are partly 0 change."""

import numpy as np

from lmd.operators import Identity, Matrix
from lmd.problems import Composite
from lmd.terms import Box, Squares

from .base import Program, Sample, tensor

SIZES = {"small": (4, 2, 5), "medium": (6, 3, 10), "large": (8, 4, 15)}  # states, inputs, steps


def sample(size, batch, generator):
    s, v, T = SIZES[size]
    F = np.eye(s) + 0.1 * generator.normal(size=(batch, s, s))
    G, state = generator.normal(size=(batch, s, v)), 0.5 * generator.normal(size=(batch, s))
    weights = np.where(generator.random((batch, s)) < 0.3, 0, 10 * generator.random((batch, s)))
    weights[:, 0] = 1.0
    diagonal = np.concatenate([np.tile(weights, T), np.full((batch, T * v), 0.1)], axis=1)
    n = T * (s + v)
    A, b = np.zeros((batch, T * s, n)), np.zeros((batch, T * s))
    for t in range(T):  # s_{t+1} = F s_t + G v_t
        rows = slice(t * s, (t + 1) * s)
        A[:, rows, rows] = np.eye(s)
        A[:, rows, T * s + t * v : T * s + (t + 1) * v] = -G
        if t > 0:
            A[:, rows, (t - 1) * s : t * s] = -F
    b[:, :s] = np.einsum("bij,bj->bi", F, state)
    high = np.append(np.full(T * s, 4.0), np.full(T * v, 0.5))
    tensors = tensor(diagonal, A, b, high, np.zeros((batch, n)))

    def build():
        diagonal, A, b, high, zero = tensors
        cost = Squares(zero, 0.5, weight=diagonal)
        return Composite(Box(-high[None], high[None]), (cost, Identity()), (Box(b, b), Matrix(A)), start=zero)

    programs = [
        Program(P=np.diag(diagonal[i]), q=np.zeros(n), A=A[i], l=b[i], u=b[i], low=-high, high=high)
        for i in range(batch)
    ]
    return Sample(build=build, programs=programs, shape=(n,))
