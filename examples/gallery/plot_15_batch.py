"""
Each instance stops on its own
==============================

A batch of images with increasing noise, and the iteration at which each of them is proven.
"""

import matplotlib.pyplot as plt
import torch
from skimage.data import chelsea

import lmd

truth = torch.from_numpy(chelsea()[100:148, 100:148].copy()).movedim(-1, 0)[None] / 255
noise = torch.linspace(0.01, 0.3, 12)
grain = torch.randn(12, 3, 48, 48, generator=torch.Generator().manual_seed(0))
problem = lmd.problems.TVDenoising(truth + noise[:, None, None, None] * grain, weight=0.3)
result = lmd.run(lmd.solvers.FGP(restart=True), problem, iterations=2000, tolerance=1e-3)

plt.figure(figsize=(6, 3.6), layout="constrained")
plt.bar(range(12), result.iterations)
plt.xticks(range(12), [f"{each:.0%}" for each in noise.tolist()], rotation=45)
plt.xlabel("noise")
plt.ylabel("iterations to a proven thousandth")
