"""
Denoise a photograph
====================

One call chooses the weight from the data and returns an answer with a certificate.
"""

import matplotlib.pyplot as plt
import numpy as np
from skimage.data import chelsea

import lmd

truth = chelsea()[40:232, 80:272]
noisy = (truth + np.random.default_rng(0).normal(0, 25, truth.shape)).clip(0, 255).astype(np.uint8)
clean, info = lmd.denoise(noisy, info=True)
print(info)

figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for axis, picture, title in zip(axes, (truth, noisy, clean), ("truth", "noisy", "denoised"), strict=True):
    axis.imshow(picture)
    axis.set_title(title)
    axis.axis("off")
