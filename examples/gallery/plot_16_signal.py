"""
Steps in a signal
=================

Total variation denoising in one dimension, for a batch of three weights.
"""

import matplotlib.pyplot as plt
import torch

import lmd

truth = torch.tensor([0.0, 1.0, 0.4, 0.7, 0.1]).repeat_interleave(60)
noisy = truth + 0.15 * torch.randn(300, generator=torch.Generator().manual_seed(0))
weights = torch.tensor([0.2, 2.0, 20.0])
result = lmd.solve(lmd.problems.TVDenoising(noisy.expand(3, 1, 300), weights), tolerance=1e-4)

figure, axes = plt.subplots(3, 1, figsize=(7, 5), sharex=True, layout="constrained")
for axis, answer, weight in zip(axes, result.x[:, 0], weights.tolist(), strict=True):
    axis.plot(noisy, color="0.8")
    axis.plot(answer)
    axis.set_ylabel(f"weight {weight:g}")
