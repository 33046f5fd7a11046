"""Sparse inverse covariance: -log det X + <S, X> plus the l1 norm off the diagonal; data change."""

import numpy as np
import torch

from lmd.core.batching import to_double
from lmd.problems import PenalisedProblem, Problem
from lmd.terms import L1

from .base import Reference, Sample, tensor

SIZES = {"small": 4, "medium": 10, "large": 20}
WEIGHT = 0.1


class Likelihood(Problem):
    """-log det X + <S, X>, infinite where X is not positive definite; x `(B, p, p)`."""

    batched = ("S",)

    def __init__(self, S):
        self.S = S

    def value(self, x):
        factor, failed = torch.linalg.cholesky_ex((x + x.mT) / 2)
        determinants = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return torch.where(failed > 0, torch.inf, (self.S * x).sum((1, 2)) - determinants)

    def start(self):
        return torch.diag_embed(1 / self.S.diagonal(dim1=1, dim2=2))

    def double(self):
        return to_double(self)


def admm(S, weights, iterations=20_000):
    """Return the minimiser and a lower bound: log det (S + U) + p for any |U| <= weights is one."""
    Z, U = np.diag(1 / np.diag(S)), np.zeros_like(S)
    for k in range(iterations):
        d, Q = np.linalg.eigh(Z - U - S)
        X = (Q * ((d + np.sqrt(d**2 + 4)) / 2)) @ Q.T
        Z = np.sign(X + U) * np.maximum(np.abs(X + U) - weights, 0)
        U = U + X - Z
        if k % 20 == 0 and np.linalg.eigvalsh(Z)[0] > 0:
            value = np.sum(S * Z) - np.linalg.slogdet(Z)[1] + (weights * np.abs(Z)).sum()
            lower = np.linalg.slogdet(S + np.clip(U, -weights, weights))[1] + len(S)
            if value - lower < 1e-11 * abs(value):
                break
    return Reference(Z.ravel(), value, lower)


def sample(size, batch, generator):
    p = SIZES[size]
    loads = np.eye(p) + np.where(generator.random((batch, p, p)) < 1.5 / p, 0.5, 0)
    rows = generator.normal(size=(batch, 3 * p, p)) @ loads
    S = rows.transpose(0, 2, 1) @ rows / (3 * p)
    weights, data = WEIGHT * (1 - np.eye(p)), tensor(S)

    def objective(i, x):
        X = x.reshape(p, p)
        X = (X + X.T) / 2
        if np.linalg.eigvalsh(X)[0] <= 0:
            return np.inf
        return np.sum(S[i] * X) - np.linalg.slogdet(X)[1] + np.abs(weights * X).sum()

    return Sample(
        build=lambda: PenalisedProblem(Likelihood(data), L1(tensor(weights[None] + 1e-300))),
        shape=(p, p),
        objective=objective,
        solve=lambda i: admm(S[i], weights),
        kind="covariance",
        arrays=[{"S": each, "weight": WEIGHT} for each in S],
        point=lambda generator: (np.eye(p) + 0.01 * np.ones((p, p))).ravel(),
    )
