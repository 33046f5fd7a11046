"""
Anisotropic and isotropic
=========================

Absolute differences along the axes like squares; their lengths like circles.
"""

import matplotlib.pyplot as plt
import torch

import lmd

axis = torch.linspace(-1, 1, 96)
disc = ((axis[:, None] ** 2 + axis**2) < 0.4).float()[None, None]
noisy = disc + 0.3 * torch.randn(disc.shape, generator=torch.Generator().manual_seed(0))
pictures = {"noisy": noisy}
for isotropic in (False, True):
    problem = lmd.problems.TVDenoising(noisy, weight=1.5, isotropic=isotropic)
    pictures["isotropic" if isotropic else "anisotropic"] = lmd.solve(problem, tolerance=1e-5).x

figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for place, (title, picture) in zip(axes, pictures.items(), strict=True):
    place.imshow(picture[0, 0], cmap="gray", vmin=0, vmax=1)
    place.set_title(title)
    place.axis("off")
