"""
Mirror descent as an optimiser of PyTorch's
===========================================

Weights of a mixture are a point of the simplex: with the entropic mirror they stay there by themselves.
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
optimiser = lmd.optim.MirrorDescent([weights], lr=0.2, mirror=lmd.mirrors.Entropic())
history = []
for _ in range(150):
    optimiser.zero_grad()
    (bumps @ weights - observed).square().sum().backward()
    optimiser.step()
    history.append(weights.detach().clone())

plt.figure(figsize=(6, 3.6), layout="constrained")
lines = plt.plot(torch.stack(history))
for line, wanted in zip(lines, target, strict=True):
    plt.axhline(float(wanted), color=line.get_color(), linestyle=":", linewidth=1)
plt.xlabel("step")
plt.ylabel("weight; dotted, the truth")
