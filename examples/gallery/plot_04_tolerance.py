"""
The cost of a tolerance
=======================

Iterations until the answer is proven to be within a tolerance, with learned steps and momenta and with restarted FGP.
"""

import matplotlib.pyplot as plt
import torch
from skimage.data import chelsea

import lmd

truth = torch.from_numpy(chelsea()[100:164, 100:164].copy()).movedim(-1, 0)[None] / 255
noisy = truth + 0.05 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
problem = lmd.problems.TVDenoising(noisy, weight=0.3)
tolerances = [10.0**-k for k in range(1, 6)]
plt.figure(figsize=(6, 3.6), layout="constrained")
for name, solver in {"lmd.solve": None, "FGP": lmd.solvers.FGP(restart=True)}.items():
    counts = [int(lmd.solve(problem, each, solver=solver).iterations[0]) for each in tolerances]
    plt.loglog(tolerances, counts, "o-", label=name)
plt.gca().invert_xaxis()
plt.xlabel("tolerance, proven")
plt.ylabel("iterations")
plt.legend()
