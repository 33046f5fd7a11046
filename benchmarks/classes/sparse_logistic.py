"""Logistic regression with an l1 norm: values of its own and a term; rows and labels change."""

import clarabel
import numpy as np
import torch

from lmd.core.batching import to_double
from lmd.problems import PenalisedProblem, Problem
from lmd.terms import L1

from .base import Program, Sample, minimise_sparse, solve_program, tensor

SIZES = {"small": (10, 30), "medium": (30, 60), "large": (60, 150)}  # features, rows


class LogisticLoss(Problem):
    """The sum of log(1 + exp(-z)) over margins z."""

    batched = ("rows",)

    def __init__(self, rows):
        self.rows = rows

    def value(self, x):
        return torch.nn.functional.softplus(-(self.rows @ x[:, :, None])[:, :, 0]).sum(1)

    def start(self):
        return self.rows.new_zeros(len(self.rows), self.rows.shape[2])

    def double(self):
        return to_double(self)


def sample(size, batch, generator):
    n, m = SIZES[size]
    features = generator.normal(size=(batch, m, n))
    truth = 2 * generator.normal(size=(batch, n)) * (generator.random((batch, n)) < 0.2)
    sign = np.where(np.einsum("bmn,bn->bm", features, truth) + generator.logistic(size=(batch, m)) > 0, 1.0, -1.0)
    rows = sign[:, :, None] * features
    weight = 0.1 * np.abs(rows.sum(axis=1)).max(axis=1) / 2
    tensors = tensor(rows, weight)

    def program(i):  # of x, t >= |x|, e >= loss, and two parts of 1 for each row: exp(-z - e) + exp(-e) <= 1
        total = 2 * n + 3 * m
        G, h = np.zeros((m, 6, total)), np.zeros((m, 6))
        j, e, first, second = np.arange(m), 2 * n + np.arange(m), 2 * n + m + np.arange(m), 2 * n + 2 * m + np.arange(m)
        G[:, 0, :n], G[j, 0, e], G[j, 2, first], G[j, 3, e], G[j, 5, second] = rows[i], 1, -1, 1, -1
        h[:, [1, 4]] = 1
        A = np.zeros((2 * n + m, total))
        A[:n, :n], A[n : 2 * n, :n] = np.eye(n), -np.eye(n)
        A[:n, n : 2 * n] = A[n : 2 * n, n : 2 * n] = -np.eye(n)
        A[2 * n + j, first] = A[2 * n + j, second] = 1
        q = np.concatenate([np.zeros(n), np.full(n, weight[i]), np.ones(m), np.zeros(2 * m)])
        l, u = np.full(2 * n + m, -np.inf), np.append(np.zeros(2 * n), np.ones(m))
        cones, G = (clarabel.ExponentialConeT(),) * (2 * m), G.reshape(-1, total)
        return Program(P=np.zeros((total, total)), q=q, A=A, l=l, u=u, G=G, h=h.ravel(), cones=cones)

    programs = [program(i) for i in range(batch)]

    def solve(i):
        x0 = solve_program(programs[i]).x[:n]
        return minimise_sparse(lambda x: torch.nn.functional.softplus(-(tensors[0][i] @ x)).sum(), x0, weight[i])

    return Sample(
        build=lambda: PenalisedProblem(LogisticLoss(tensors[0]), L1(tensors[1])),
        programs=programs,
        solve=solve,
        shape=(n,),
        objective=lambda i, x: np.logaddexp(0, -rows[i] @ x).sum() + weight[i] * np.abs(x).sum(),
        kind="sparse_logistic",
        arrays=[{"features": features[i], "labels": sign[i], "weight": weight[i]} for i in range(batch)],
    )
