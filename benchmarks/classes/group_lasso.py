"""The group lasso, groups of five; data and weights change."""

import clarabel
import numpy as np
import torch

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import GroupNorm, Squares

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": (30, 4), "medium": (80, 12), "large": (120, 40)}  # rows, groups
EACH = 5


class OfGroups(Matrix):
    """A matrix of x whose entries stand in groups `(B, groups, EACH)`."""

    def _apply(self, x):
        return super()._apply(x.flatten(1))

    def _adjoint(self, z):
        return super()._adjoint(z).unflatten(1, (-1, EACH))


def sample(size, batch, generator):
    (m, groups), shared = SIZES[size], generator_of(0)
    n = groups * EACH
    A = shared.normal(size=(m, n)) / np.sqrt(m)
    chosen = np.repeat(generator.random((batch, groups)) < 0.3, EACH, axis=1)
    b = (generator.normal(size=(batch, n)) * chosen) @ A.T + 0.1 * generator.normal(size=(batch, m))
    weight = 0.1 * np.linalg.norm((b @ A).reshape(batch, groups, EACH), axis=2).max(axis=1) + 1e-2
    tensors = tensor(A, b, weight)

    def build():
        A, b, weight = tensors
        start = torch.zeros(len(b), groups, EACH, dtype=torch.float64)
        return Composite(GroupNorm(weight, axes=2), (Squares(b, 0.5), OfGroups(A)), start=start)

    rows = np.zeros((groups, EACH + 1, n + groups))  # of x and t, at least the lengths of the groups
    for g in range(groups):
        rows[g, 0, n + g] = -1
        rows[g, 1:, g * EACH : (g + 1) * EACH] = -np.eye(EACH)
    P = np.zeros((n + groups, n + groups))
    P[:n, :n] = A.T @ A
    cones = (clarabel.SecondOrderConeT(EACH + 1),) * groups

    def program(i):
        q = np.append(-b[i] @ A, np.full(groups, weight[i]))
        G = rows.reshape(-1, n + groups)
        return Program(P=P, q=q, r=b[i] @ b[i] / 2, G=G, h=np.zeros(len(G)), cones=cones)

    def objective(i, x):
        lengths = np.linalg.norm(x.reshape(groups, EACH), axis=1)
        return 0.5 * np.square(A @ x - b[i]).sum() + weight[i] * lengths.sum()

    return Sample(
        build=build,
        programs=[program(i) for i in range(batch)],
        shape=(groups, EACH),
        objective=objective,
        kind="group_lasso",
        arrays=[{"A": A, "b": b[i], "weight": weight[i], "each": EACH} for i in range(batch)],
    )
