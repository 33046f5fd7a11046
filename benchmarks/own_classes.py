"""Classes of one's own, learned at default settings and held against the tuned classical methods: prints ratios.

    python benchmarks/own_classes.py [--minutes 5] [--classes logistic,control,fused]

For each class, on a batch of 100 test instances, the milliseconds until 95% of them are within 1e-2 and 1e-4 of their
minima: the answer of `lmd.learn` and the best of the classical methods, which are tuned for each accuracy. Then control
in a batch of 1000 to 1e-3, and one instance alone, beside OSQP with its own warm starts, where it is installed.
"""

import argparse
import json
from pathlib import Path

import torch
from peers import peers
from sklearn.datasets import load_breast_cancer

import lmd
from lmd.operators import Differences, Identity
from lmd.problems import Composite, ControlFamily, Family, Problem
from lmd.terms import L1, Huber, Quadratic, Shifted, Simplex
from lmd.training.instances import Instances, curve, draw, milliseconds, reached
from lmd.training.proposals import ClassInfo, propose_classical
from lmd.training.tuning import climb

LONGEST = 1000


class Logistic(Problem):
    """Ridge logistic regression on rows of a dataset; rows with label 0 do not count."""

    batched = ("rows", "labels")

    def __init__(self, rows, labels):
        self.rows, self.labels = rows, labels

    def value(self, x):
        margins = (self.rows @ x[:, :, None])[:, :, 0] * self.labels
        losses = torch.nn.functional.softplus(-margins) * (self.labels != 0)
        return losses.sum(dim=1) / (self.labels != 0).sum(dim=1) + 0.005 * x.square().sum(dim=1)


class LogisticFamily(Family):
    """150 to 200 rows of scikit-learn's breast cancer data, 30 weights."""

    name = "logistic"

    def __init__(self):
        rows, labels = load_breast_cancer(return_X_y=True)
        rows = torch.tensor(rows, dtype=torch.float32)
        self.rows = (rows - rows.mean(dim=0)) / rows.std(dim=0)
        self.labels = 2 * torch.tensor(labels, dtype=torch.float32) - 1

    def sample(self, batch, generator):
        chosen = torch.stack([torch.randperm(len(self.rows), generator=generator)[:200] for _ in range(batch)])
        count = torch.randint(150, 201, (batch, 1), generator=generator)
        counts = torch.arange(200) < count
        return Logistic(self.rows[chosen] * counts[:, :, None], self.labels[chosen] * counts), torch.zeros(batch, 30)


class FusedFamily(Family):
    """Huber fused lasso: piecewise constant signals of 200 entries, mostly 0, with noise and gross errors."""

    name = "fused"

    def sample(self, batch, generator):
        def drawn(*shape):
            return torch.rand(batch, *shape, generator=generator)

        jumps = (drawn(200) - 0.5) * 6 * (drawn(200) < 0.03)
        signal = jumps.cumsum(dim=1) * (drawn(1) < 2)
        y = signal + 0.2 * torch.randn(batch, 200, generator=generator) + 4 * (drawn(200) < 0.05)
        start = torch.zeros(batch, 200)
        behind = (L1(0.1), Identity()), (L1(1.0), Differences((200,)))
        return Composite(Shifted(Huber(1.0, 0.5), y), *behind, start=start), start


class PortfolioFamily(Family):
    r"""Markowitz portfolios on the simplex: risk x'Cx / 2 minus the expected return, which changes.

    C is a covariance of five common factors and noise of each asset's own, shared by all instances.
    """

    name = "portfolio"

    def __init__(self, assets=50):
        generator = torch.Generator().manual_seed(0)
        loads = torch.randn(assets, 5, generator=generator, dtype=torch.float64)
        own = 0.1 + torch.rand(assets, generator=generator, dtype=torch.float64)
        self.P = (loads @ loads.mT + torch.diag(own)).float()

    def sample(self, batch, generator):
        returns = torch.randn(batch, len(self.P), generator=generator)
        start = torch.full_like(returns, 1 / len(self.P))
        return Composite(Quadratic(self.P, -returns), (Simplex(), Identity()), start=start), start


CLASSES = {"logistic": LogisticFamily, "control": ControlFamily, "fused": FusedFamily}


def best_classical(known, validation, test, accuracy):
    """The fastest tuned classical method on the test instances, tuned on the validation instances: name, count, ms."""
    best = ("none", None, float("inf"))
    for name, settings in propose_classical(known).items():
        fastest = best[2]

        def rank(places, settings=settings):
            nonlocal fastest
            solver = settings.solver(places)
            quantiles = curve(solver, [validation], LONGEST, accuracy)
            count = reached(quantiles, accuracy)
            spent = float("inf") if count is None else milliseconds(solver, [validation], count, repeats=3)
            fastest = min(fastest, spent)
            return spent, min(quantiles)

        solver = settings.solver(climb(settings.sizes, settings.first, rank))
        count = reached(curve(solver, [test], LONGEST, accuracy), accuracy)
        if count is not None:
            best = min(best, (name, count, milliseconds(solver, [test], count)), key=lambda row: row[2])
    return best


def compare(name, minutes, out, say):
    family = CLASSES[name]()
    solver = lmd.learn(family, minutes=minutes, out=out, resume=out is not None, progress=say)
    known = ClassInfo(Instances.solve(*draw(family, 400, 0)))
    validation = Instances.solve(*draw(family, 100, 1, held_out=True))
    test = Instances.solve(*draw(family, 100, 1000, held_out=True))
    print(f"{name}: {solver.card['winner']}")
    for accuracy in (1e-2, 1e-4):
        count = reached(curve(solver, [test], LONGEST, accuracy), accuracy)
        method, classical, slow = best_classical(known, validation, test, accuracy)
        fast = float("inf") if count is None else milliseconds(solver, [test], count, repeats=15)
        print(
            f"  to {accuracy:g}: {count} iterations, {fast:.2f} ms; {method}: {classical}, {slow:.2f} ms; "
            f"{slow / fast:.1f} times as fast"
        )
    return solver


def beside_osqp(solver):
    """A batch of 1000 against one after the other, and one alone."""
    test = Instances.solve(*draw(ControlFamily(), 1000, 1000, held_out=True))
    count = reached(curve(solver, [test], LONGEST, 1e-3), 1e-3)
    batch = milliseconds(solver, [test], count, repeats=15)
    one = test.select(slice(0, 1))
    alone = milliseconds(solver, [one], count, repeats=101)
    print(f"control, 1000 instances to 1e-3: {count} iterations, {batch:.2f} ms; one alone {alone:.3f} ms")
    for row in peers(test, 1e-3):
        osqp = row["milliseconds"]["0.001"]
        print(f"  {row['method']}: {osqp:.1f} ms, {row['one']['0.001']:.3f} ms each: {osqp / batch:.1f} times as fast;")
        print(f"  one alone takes {alone / row['one']['0.001']:.2f} times as long")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--classes", default="logistic,control,fused")
    parser.add_argument("--out", type=Path, help="keep the learned solvers here, and go on with them")
    parser.add_argument("--cards", action="store_true", help="print the cards")
    given = parser.parse_args()
    for name in given.classes.split(","):
        out = None if given.out is None else given.out / name
        solver = compare(name, given.minutes, out, lambda line: print(f"    {line}", flush=True))
        if given.cards:
            print(json.dumps(solver.card, indent=1))
        if name == "control":
            beside_osqp(solver)


if __name__ == "__main__":
    main()
