"""
A certificate and the true gap
==============================

The certified bound on f(x) - min f and the true gap along a run. The bound is never below the true gap.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import lmd

noisy = torch.rand(1, 1, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
problem = lmd.problems.TVDenoising(noisy, weight=0.4)
least = float(lmd.guarantees.minimum(problem))
solver, rows = lmd.solvers.FGP(restart=True), []
state = solver.init(problem, noisy)
for _ in range(150):
    state = solver.step(problem, state)
    value, gap = problem.certified_gap(state.x, state.dual)
    rows.append((float(value) - least, float(gap)))

true, proven = np.array(rows).T
plt.figure(figsize=(6, 3.6), layout="constrained")
plt.semilogy(proven, label="proven")
plt.semilogy(true.clip(1e-13), label="true")
plt.xlabel("iteration")
plt.ylabel("above the minimum")
plt.legend()
