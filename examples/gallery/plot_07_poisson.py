"""
Photon counts
=============

Poisson counts want the Kullback-Leibler divergence for their misfit: a problem put together from parts.
"""

import matplotlib.pyplot as plt
import torch

import lmd
from lmd.operators import Differences
from lmd.terms import L1, KullbackLeibler

truth = torch.tensor([3.0, 12.0, 6.0, 20.0, 8.0]).repeat_interleave(40)
counts = torch.poisson(truth, generator=torch.Generator().manual_seed(0))[None]
problem = lmd.problems.Composite(KullbackLeibler(counts), (L1(2.0), Differences((200,))), start=counts + 1)
result = lmd.solve(problem, tolerance=1e-4)
print(result.summary())

plt.figure(figsize=(7, 3.4), layout="constrained")
plt.plot(counts[0], ".", color="0.7", label="counts")
plt.plot(truth, "k:", label="truth")
plt.plot(result.x[0], label="answer")
plt.legend()
