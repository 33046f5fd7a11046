"""
A learned geometry
==================

Least squares in two variables: ten learned steps in a learned quadratic geometry, compared with gradient descent.
"""

import matplotlib.pyplot as plt
import torch

import lmd

family = lmd.problems.LeastSquaresFamily()
mirror = lmd.mirrors.Quadratic(dimension=2)
learned = lmd.solvers.LearnedMirrorDescent(mirror, iterations=10, initial_step=0.1, interval=(0.05, 0.5)).double()
lmd.train(learned, family, updates=250, batch=100, learning_rate=0.05, schedule="cosine", progress=False)

problem, x0 = family.sample(1, torch.Generator().manual_seed(3))
plt.figure(figsize=(5, 4), layout="constrained")
for name, solver in {"learned": learned, "gradient descent": lmd.solvers.GradientDescent(0.05)}.items():
    path = [x0[0]]
    lmd.run(solver, problem, x0, iterations=10, callbacks=[lambda state, _, to=path: to.append(state.x[0])])
    plt.plot(*torch.stack(path).T, "o-", label=name)
plt.plot(*lmd.guarantees.minimiser(problem)[0], "k*", markersize=12, label="minimiser")
plt.legend()
