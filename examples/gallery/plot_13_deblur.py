"""
Remove a blur
=============

A picture with Gaussian blur and noise is restored with total variation. The answer is proven to a relative gap of 1e-3.
"""

import matplotlib.pyplot as plt
import torch
from skimage.data import astronaut

import lmd

truth = torch.from_numpy(astronaut()[20:116, 170:266].copy()).movedim(-1, 0)[None] / 255
kernel = lmd.operators.gaussian_kernel(1.5)
blurred = lmd.operators.Blur(kernel, 96, 96)(truth)
blurred = blurred + 0.01 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
problem = lmd.problems.TVDeblurring(blurred, kernel, weight=0.001)
result = lmd.solve(problem, tolerance=1e-3)
bound = float(result.certificate.bound / result.certificate.lower_bound)
print(f"{result.status[0].name}: within {bound:.2%} of the minimum after {int(result.iterations[0])} iterations")

figure, axes = plt.subplots(1, 3, figsize=(10, 3.6), layout="constrained")
for place, picture, title in zip(axes, (truth, blurred, result.x), ("truth", "blurred", "sharpened"), strict=True):
    place.imshow(picture[0].movedim(0, -1).clamp(0, 1).numpy())
    place.set_title(title)
    place.axis("off")
