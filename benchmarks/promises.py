"""How often promises are broken: on laws that are known, and on the cards of `lmd.learn` for families that are hard.

    python benchmarks/promises.py [--laws 2000] [--minutes 0.3] [--instances 300] [--families shared,flat,...]

*Laws*: a family has relative gaps with a log-normal law of its own, drawn at random, so that the share within a target
is known. From a number of held-out runs, drawn at random too, comes a promise; it fails where it says more than that
share: at 95% confidence, at most 5% of the time.

*Cards*: a solver is learned for each family; then fresh instances are drawn one by one, and their gaps are measured
against minima that are proven to a tenth of the target or known in closed form. A promise is broken where the share of
these is below what it says, by more than chance explains (one in a thousand). Exit code 1 where one is.
"""

import argparse
import math
import sys
import warnings

import torch
from own_classes import FusedFamily, LogisticFamily, PortfolioFamily

import lmd
from lmd.guarantees import promise
from lmd.guarantees.promises import UnprovenError, bound_gaps, least_share
from lmd.operators import Identity, Matrix
from lmd.problems import Composite, ControlFamily, Family, LeastSquares, Problem
from lmd.terms import L1, Squares
from lmd.training.instances import draw_separately


class SharedFamily(Family):
    """Least squares with one random matrix for each batch, hard with probability 0.4."""

    name = "shared"

    def sample(self, batch, generator):
        hard = torch.rand((), generator=generator) < 0.4
        scales = torch.logspace(-2 if hard else 0, 0, 8, dtype=torch.float64)
        W = torch.cat([torch.diag(scales), 0.01 * torch.eye(8, dtype=torch.float64)])
        b = torch.randn(batch, 8, generator=generator, dtype=torch.float64)
        return LeastSquares(W, torch.cat([b, torch.ones_like(b)], 1)), torch.zeros(batch, 8, dtype=torch.float64)


class RandomMatrixFamily(Family):
    """Lasso with a random matrix for each batch, so that no two instances stack."""

    name = "random-matrix"

    def sample(self, batch, generator):
        X = torch.randn(30, 20, generator=generator, dtype=torch.float64)
        b = torch.randn(batch, 30, generator=generator, dtype=torch.float64)
        start = torch.zeros(batch, 20, dtype=torch.float64)
        return Composite(L1(2.0), (Squares(b, 0.5), Matrix(X)), start=start), start


class Flat(Problem):
    """1e-3 + a sum of weights times (sqrt(1 + (x - b)^2) - 1): curvatures from 1e-12 to 1, and minima of 1e-3."""

    batched = ("b",)

    def __init__(self, b, weights):
        self.b, self.weights = b, weights

    def value(self, x):
        return 1e-3 + (self.weights * ((1 + (x - self.b) ** 2).sqrt() - 1)).sum(1)


class FlatFamily(Family):
    name = "flat"

    def sample(self, batch, generator):
        b = 30 * torch.randn(batch, 60, generator=generator, dtype=torch.float64)
        return Flat(b, torch.logspace(-12, 0, 60, dtype=torch.float64)), torch.zeros_like(b)


class ElasticNetFamily(Family):
    """A shared design of 100 x 200 with correlations 0.8^|i - j|, sparse truths, noise 1."""

    name = "elastic-net"

    def __init__(self):
        places = torch.arange(200.0)
        root = torch.linalg.cholesky(0.8 ** (places[:, None] - places).abs())
        self.X = torch.randn(100, 200, generator=torch.Generator().manual_seed(5)) @ root.mT

    def sample(self, batch, generator):
        weights = 3 * torch.randn(batch, 200, generator=generator)
        weights = weights * (torch.rand(batch, 200, generator=generator) < 0.05)
        b, start = weights @ self.X.mT + torch.randn(batch, 100, generator=generator), torch.zeros(batch, 200)
        behind = (Squares(b, 0.5), Matrix(self.X)), (Squares(torch.zeros_like(start), 0.5), Identity())
        return Composite(L1(20.0), *behind, start=start), start


FAMILIES = {
    "shared": SharedFamily,
    "random-matrix": RandomMatrixFamily,
    "flat": FlatFamily,
    "elastic-net": ElasticNetFamily,
    "logistic": LogisticFamily,
    "control": ControlFamily,
    "portfolio": PortfolioFamily,
    "fused": FusedFamily,
}
CHANCE = 1e-3


def check_laws(count):
    """How many promises about laws that are known say too much."""
    generator, failed = torch.Generator().manual_seed(0), 0
    for _ in range(count):
        mean, spread = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        centre, width = 1e-3 * math.exp(-4 * mean), 0.5 + 2 * spread
        runs = int(torch.randint(20, 400, (), generator=generator))
        gaps = centre * torch.exp(width * torch.randn(runs, generator=generator, dtype=torch.float64))
        share = 0.5 * (1 + math.erf(math.log(1e-3 / centre) / width / math.sqrt(2)))
        failed += promise(gaps, 1e-3, 10).share > share
    error = math.sqrt(0.05 * 0.95 / count)
    print(f"{failed} of {count} promises are broken: {failed / count:.2%}; 5% is allowed, its own error {error:.2%}")
    return failed <= count * (0.05 + 3 * error)


def check_card(name, minutes, instances):
    """Whether the card of a learned solver keeps its promise on fresh instances, or makes none."""
    family = FAMILIES[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lmd.errors.TrainingWarning)
        solver = lmd.learn(family, minutes=minutes)
    card = solver.card
    if "promise" not in card:
        print(f"{name}: {card['winner']}; {card['promised']}", flush=True)
        return True
    seeds = range(1, 2 * instances, 2)  # learning takes even ones
    like = family.sample(1, torch.Generator().manual_seed(0))[1]
    try:
        gaps = [
            bound_gaps(solver, *batch, card["target"], card["promise"]["iterations"])
            for batch in draw_separately(family, seeds, like)
        ]
    except UnprovenError as error:
        print(f"{name}: {card['winner']}; {card['promised']}; not checked: {error}", flush=True)
        return True
    within = int((torch.cat(gaps) <= card["target"]).sum())
    most = 1 - least_share(instances - within, instances, 1 - CHANCE)
    print(f"{name}: {card['winner']}; {card['promised']}; {within} of {instances} fresh ones are", flush=True)
    return card["promise"]["share"] <= most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--laws", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=0.3, help="for each family; 0 leaves the cards out")
    parser.add_argument("--instances", type=int, default=300)
    parser.add_argument("--families", default=",".join(FAMILIES))
    given = parser.parse_args()
    kept = [check_laws(given.laws)] if given.laws else []
    names = given.families.split(",") if given.minutes else []
    kept += [check_card(name, given.minutes, given.instances) for name in names]
    print(f"{len(kept) - sum(kept)} of {len(kept)} checks failed")
    sys.exit(not all(kept))


if __name__ == "__main__":
    main()
