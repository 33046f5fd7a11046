"""
Warm starts along a path of weights
===================================

Problems with sixteen weights, each solved from the last answer and its dual point (warm) and without them (cold). The
learned schedules of `lmd.solve` use the last dual point only if that is faster than a cold start, as it is on this path
of similar weights. FGP always uses it.
"""

import matplotlib.pyplot as plt
import torch
from skimage.data import chelsea

import lmd

truth = torch.from_numpy(chelsea()[100:148, 100:148].copy()).movedim(-1, 0)[None] / 255
noisy = truth + 0.05 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
weights = torch.linspace(0.3, 0.27, 16).tolist()

figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
for axis, (name, solver) in zip(axes, {"lmd.solve": None, "FGP": lmd.solvers.FGP(restart=True)}.items(), strict=True):
    warm, cold, last = [], [], None
    for weight in weights:
        problem = lmd.problems.TVDenoising(noisy, weight)
        last = lmd.solve(problem, tolerance=1e-3, solver=solver, warm=last)
        warm.append(int(last.iterations[0]))
        cold.append(int(lmd.solve(problem, tolerance=1e-3, solver=solver).iterations[0]))
    axis.plot(weights, cold, "o-", label="cold")
    axis.plot(weights, warm, "o-", label="warm")
    axis.invert_xaxis()  # the path begins at the largest weight
    axis.set(title=name, xlabel="weight")
axes[0].set(ylabel="iterations until proven", ylim=(0, None))
axes[0].legend()
