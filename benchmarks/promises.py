"""Families with known laws, and how often the promise about one is broken: at 95% confidence, at most 5% of the time.

    python benchmarks/promises.py [--families 2000]

A family has relative gaps with a log-normal law of its own, drawn at random: the share within a target is known.
From a number of held-out runs, drawn at random too, comes a promise; it fails where it says more than that share.
"""

import argparse
import math

import torch

from lmd.guarantees import promise


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=2000)
    count, generator, failed = parser.parse_args().families, torch.Generator().manual_seed(0), 0
    for _ in range(count):
        mean, spread = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        centre, width = 1e-3 * math.exp(-4 * mean), 0.5 + 2 * spread
        runs = int(torch.randint(20, 400, (), generator=generator))
        gaps = centre * torch.exp(width * torch.randn(runs, generator=generator, dtype=torch.float64))
        share = 0.5 * (1 + math.erf(math.log(1e-3 / centre) / width / math.sqrt(2)))
        failed += promise(gaps, 1e-3, 10).share > share
    error = math.sqrt(0.05 * 0.95 / count)
    print(f"{failed} of {count} promises are broken: {failed / count:.2%}; 5% is allowed, its own error {error:.2%}")


if __name__ == "__main__":
    main()
