"""Add your own task, total variation of signals, to `lmd list`, `lmd train` and `lmd bench`.

Your package registers the task with an entry point in its pyproject.toml:

    [project.entry-points."lmd.tasks"]
    signals = "own_task:TASK"

    lmd train signals-10 --preset standard --out runs/signals
    lmd bench signals

Run as a script, this file trains a solver in a few seconds and prints the relative gaps of PDHG and of that solver.
"""

import torch

import lmd
from lmd.operators import Differences
from lmd.reproduction.tasks import CertifiedBy, Contest, Drawn, Recipe, Task
from lmd.terms import L1, Squares

LENGTH, PIECES = 120, 6


class Signals(lmd.problems.Family):
    """min ||x - y||^2 + 1/2 sum |x_i+1 - x_i|, where y is a noisy signal of six constant pieces."""

    name = "signals"

    def __init__(self, noise=0.1):
        self.noise = noise

    def sample(self, batch, generator):
        levels = torch.rand(batch, PIECES, generator=generator).repeat_interleave(LENGTH // PIECES, dim=1)
        y = levels + self.noise * torch.randn(batch, LENGTH, generator=generator)
        return lmd.problems.Composite(Squares(y), (L1(0.5), Differences((LENGTH,))), start=y), y

    def with_noise(self, noise):
        return Signals(noise)


def training(updates):
    return {"updates": updates, "batch": 20, "learning_rate": 0.03, "schedule": "cosine", "value_weights": "last"}


TASK = Task(
    name="signals",
    title="total variation of signals",
    recipes=(
        Recipe(
            iterations=10,
            title="learned saddle mirror descent of 10 iterations, for signals of flat pieces",
            solver=lambda seed: lmd.solvers.LearnedPDHG(10),
            family=lambda preset: Signals(),
            source=Drawn("random signals"),
            settings={"quick": training(60), "standard": training(1000)},
        ),
    ),
    reference=CertifiedBy(lmd.solvers.FGP(restart=True), tolerance=1e-5, unique=True),
    contest=Contest(lambda images, noise, generator: Signals(noise).sample(len(images), generator)[0], noise=(5, 10)),
)

if __name__ == "__main__":
    recipe = TASK.solvers["signals-10"]
    solver, family = recipe.solver(0), recipe.family("quick")
    lmd.train(solver, family, **recipe.settings["quick"])
    problem, x0 = family.sample(20, torch.Generator().manual_seed(1))
    least, _ = TASK.reference(problem, x0)
    for method in (lmd.solvers.PDHG(), solver):
        excess = lmd.run(method, problem, x0, iterations=10).values / least - 1
        print(f"{type(method).__name__:12s} {float(excess.mean()):.4f}")
