"""
A regularisation path in one batch
==================================

The lasso for all weights of a regularisation path is one batch, and each solution is proven.
"""

import matplotlib.pyplot as plt
import torch

import lmd

generator = torch.Generator().manual_seed(0)
A = torch.randn(60, 20, generator=generator, dtype=torch.float64) / 60**0.5
truth = torch.where(torch.arange(20) < 5, torch.linspace(1, 2, 20, dtype=torch.float64), 0.0)
b = A @ truth + 0.05 * torch.randn(60, generator=generator, dtype=torch.float64)
weights = torch.logspace(-3, 0, 40, dtype=torch.float64) * (A.T @ b).abs().max()
result = lmd.solve(lmd.problems.Lasso(A, b.expand(40, 60), weights), tolerance=1e-4)

plt.figure(figsize=(6, 3.6), layout="constrained")
plt.semilogx(weights, result.x)
plt.xlabel("weight")
plt.ylabel("coefficients")
