"""
Photon counts
=============

For Poisson counts the misfit is the Kullback-Leibler divergence. The weight is chosen by a risk estimate for counts.
"""

import matplotlib.pyplot as plt
import numpy as np

import lmd

truth = np.repeat([3.0, 12.0, 6.0, 20.0, 8.0], 40)
counts = np.random.default_rng(0).poisson(truth).astype(float)
means, info = lmd.denoise(counts, data="poisson", info=True)
print(info)

plt.figure(figsize=(7, 3.4), layout="constrained")
plt.plot(counts, ".", color="0.7", label="counts")
plt.plot(truth, "k:", label="truth")
plt.plot(means, label="answer")
plt.legend()
