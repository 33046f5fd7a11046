"""
Mirror descent as a PyTorch optimiser
=====================================

The weights of a mixture are a point of the simplex. With the entropic mirror every step stays in the simplex without a
projection. The misfit of a mixture x is smooth in the 1-norm with L = 2 max_i ||bump_i||^2. The entropy is strongly
convex in this norm, so a step of 1/L never increases the misfit.
"""

import matplotlib.pyplot as plt
import torch

import lmd

generator = torch.Generator().manual_seed(0)
centres, target = torch.linspace(-3, 3, 7), torch.tensor([0.0, 0.3, 0.0, 0.0, 0.5, 0.0, 0.2])
grid = torch.linspace(-5, 5, 200)
bumps = torch.exp(-((grid[:, None] - centres) ** 2))
observed = bumps @ target + 0.01 * torch.randn(200, generator=generator)

weights = torch.nn.Parameter(torch.full((7,), 1 / 7))
step = 1 / (2 * float(bumps.square().sum(dim=0).max()))
optimiser = lmd.optim.MirrorDescent([weights], lr=step, mirror=lmd.mirrors.Entropic())
history, misfits = [], []
for _ in range(1000):
    optimiser.zero_grad()
    misfit = (bumps @ weights - observed).square().sum()
    misfit.backward()
    optimiser.step()
    history.append(weights.detach().clone())
    misfits.append(misfit.item())
print(f"misfit {misfits[0]:.3g} at first, {misfits[-1]:.3g} at last; the weights sum to {weights.sum().item():.6f}")

plt.figure(figsize=(6, 3.6), layout="constrained")
lines = plt.semilogx(range(1, 1001), torch.stack(history))
for line, wanted in zip(lines, target, strict=True):
    plt.axhline(float(wanted), color=line.get_color(), linestyle=":", linewidth=1)
plt.xlabel("step")
plt.ylabel("weight (dotted: the truth)")
