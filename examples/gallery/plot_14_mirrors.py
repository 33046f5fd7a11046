"""
Balls of divergences
====================

Each mirror has its own notion of distance: the divergences of two mirrors from a point near a corner of the simplex.
"""

import matplotlib.pyplot as plt
import torch

import lmd

side = torch.linspace(1e-3, 1 - 1e-3, 160)
first, second = torch.meshgrid(side, side, indexing="ij")
inside = first + second < 1 - 1e-3
points = torch.stack([first, second, (1 - first - second).clamp(min=1e-3)], dim=-1).reshape(-1, 3)
centre = torch.tensor([0.08, 0.12, 0.8]).expand_as(points)
mirrors = {"entropic": lmd.mirrors.Entropic(), "Euclidean": lmd.mirrors.Euclidean()}

figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
for axis, (name, mirror) in zip(axes, mirrors.items(), strict=True):
    away = mirror.divergence(points, centre).reshape(160, 160)
    axis.contourf(first, second, away.where(inside, torch.nan).sqrt(), levels=14)
    axis.set_title(name)
