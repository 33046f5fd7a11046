"""
Tomography from few angles
==========================

A picture of 64 x 64 pixels is reconstructed from thirty projections with total variation and a certificate.
"""

import matplotlib.pyplot as plt
import torch

import lmd

axis = torch.linspace(-1, 1, 64)
radius = (axis[:, None] ** 2 + axis**2).sqrt()
truth = 0.3 * (radius < 0.9) + 0.5 * (((axis[:, None] - 0.3) ** 2 + axis**2) < 0.05) + 0.2 * (radius < 0.4)
beams = lmd.operators.ParallelBeam(64, 64, angles=30)
sinogram = beams(truth.float()[None, None])
sinogram = sinogram + 0.02 * sinogram.max() * torch.randn(sinogram.shape, generator=torch.Generator().manual_seed(0))
problem = lmd.problems.TVTomography(sinogram, (64, 64), weight=2.0, beams=beams)
result = lmd.solve(problem, tolerance=3e-2)
print(result.summary())

figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for place, picture, title in zip(
    axes, (truth, sinogram[0, 0], result.x[0, 0]), ("truth", "seen", "found"), strict=True
):
    place.imshow(picture, cmap="gray", aspect="auto")
    place.set_title(title)
    place.axis("off")
