"""
A solver for a model written in CVXPY
=====================================

Steer a cart to its target with bounded forces. The CVXPY model has two parameters, the state of the cart
and its target. `from_cvxpy` converts it to a family, and `lmd.learn` finds a solver for the family.
"""

import cvxpy
import matplotlib.pyplot as plt
import torch

import lmd

steps = 20
place, speed = cvxpy.Variable(steps + 1, name="place"), cvxpy.Variable(steps + 1, name="speed")
force = cvxpy.Variable(steps, name="force")
begin, aim = cvxpy.Parameter(2, name="begin"), cvxpy.Parameter(name="aim")
rules = [place[0] == begin[0], speed[0] == begin[1], force <= 1, force >= -1]
rules += [place[1:] == place[:-1] + 0.3 * speed[:-1], speed[1:] == speed[:-1] + 0.3 * force]
cost = cvxpy.sum_squares(place - aim) + 0.1 * cvxpy.sum_squares(force)
model = cvxpy.Problem(cvxpy.Minimize(cost), rules)

# %%
# The model does not say how its parameters are distributed, so we do.


def normal(*shape):
    return lambda batch, generator: torch.randn(batch, *shape, generator=generator)


family = lmd.problems.from_cvxpy(model, {begin: normal(2), aim: normal()})
solver = lmd.learn(family, minutes=0.1, target=1e-3)

# %%
# Solve for eight carts at once. The dashed line is the first cart solved by CVXPY.

problem, start = family.sample(8, torch.Generator().manual_seed(1))
result = lmd.run(solver, problem, start, tolerance=1e-3)
found = family.unpack(problem, result.x)

values = problem.parameters[0].double().numpy()  # of all parameters, one after the other
for parameter in model.parameters():
    parameter.value, values = values[: parameter.size].reshape(parameter.shape), values[parameter.size :]
least = model.solve(solver=cvxpy.CLARABEL)
exact = {"place": place.value, "force": force.value}
place.value, speed.value, force.value = (found[name][0].double().numpy() for name in ("place", "speed", "force"))
bound = float(result.certificate.bound[0])
print(f"cost of the first cart: {cost.value:.4f} learned, proven to be at most {bound:.2g} above the minimum")
print(f"the minimum is {least:.4f} by CVXPY")

figure, axes = plt.subplots(2, 1, figsize=(7, 5), sharex=True, layout="constrained")
for axis, name in zip(axes, ("place", "force"), strict=True):
    axis.plot(found[name].T)
    axis.plot(exact[name], "k--")
    axis.set_ylabel(name)
axes[1].set_xlabel("step")
