"""
Anisotropic and isotropic total variation
=========================================

With a large weight, the anisotropic form, which sums absolute differences along the axes, turns a disc into an octagon.
The isotropic form sums lengths of gradients, and the disc stays round.
"""

import matplotlib.pyplot as plt
import torch

import lmd

axis = torch.linspace(-1, 1, 96)
disc = ((axis[:, None] ** 2 + axis**2) < 0.4).float()[None, None]
noisy = disc + 0.3 * torch.randn(disc.shape, generator=torch.Generator().manual_seed(0))
pictures = {"noisy": noisy}
for isotropic in (False, True):
    problem = lmd.problems.TVDenoising(noisy, weight=16.0, isotropic=isotropic)
    pictures["isotropic" if isotropic else "anisotropic"] = lmd.solve(problem, tolerance=1e-4).x

figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for place, (title, picture) in zip(axes, pictures.items(), strict=True):
    place.imshow(picture[0, 0], cmap="gray")
    place.set_title(title)
    place.axis("off")
