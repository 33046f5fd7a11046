"""
Warm starts along a path of weights
===================================

From one weight to the next, with the dual point of the last answer: how many iterations it takes, warm and cold.
"""

import matplotlib.pyplot as plt
import torch

import lmd

noisy = torch.rand(1, 1, 48, 48, generator=torch.Generator().manual_seed(0))
weights = torch.linspace(0.3, 0.27, 16).tolist()
warm, cold, last = [], [], None
for weight in weights:
    problem = lmd.problems.TVDenoising(noisy, weight)
    last = lmd.solve(problem, tolerance=1e-5, warm=last)
    warm.append(int(last.iterations[0]))
    cold.append(int(lmd.solve(problem, tolerance=1e-5).iterations[0]))

plt.figure(figsize=(6, 3.6), layout="constrained")
plt.plot(weights, cold, "o-", label="cold")
plt.plot(weights, warm, "o-", label="warm")
plt.xlabel("weight")
plt.ylabel("iterations")
plt.legend()
