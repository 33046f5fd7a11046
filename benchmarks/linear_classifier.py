"""Linear classifiers on features of the test fold: the trained Newton steps beside L-BFGS and scikit-learn.

    python benchmarks/linear_classifier.py

Gaps, which are losses over log(10), of ten data sets after each of twelve iterations, beside L-BFGS from the mean of
twenty training optima; then milliseconds to gaps, one data set alone, and those of `LogisticRegression` for ever
smaller tolerances.
"""

import math
import time
import warnings

import torch
from sklearn.linear_model import LogisticRegression

from lmd import run, zoo
from lmd.reproduction.tasks.task import HeldOut, optimum
from lmd.reproduction.tasks.vectors import CLASSIFIER_DIGITS
from lmd.solvers import LBFGS


def main():
    ridged = CLASSIFIER_DIGITS.train("standard", ridge=1e-4)
    test = CLASSIFIER_DIGITS.held_out(ridged, HeldOut("standard", subsets=10))
    problem, x0 = test.sample(10, torch.Generator().manual_seed(2_000_000))
    generator = torch.Generator().manual_seed(3_000_000)
    mean = torch.stack([optimum(ridged.sample(1, generator)[0]).x[0] for _ in range(20)]).mean(dim=0)
    start = mean.to(x0).expand_as(x0).contiguous()
    methods = {"learned": (zoo.load("linear-classifier-newton-10"), x0), "L-BFGS": (LBFGS(), start)}
    for name, (solver, begin) in methods.items():
        gaps = run(solver, problem, begin, 12).history.values / math.log(10)
        print(f"{name}: {' '.join(f'{gap:.1e}' for gap in gaps.mean(dim=1)[1:])}; worst at 10 {gaps[10].max():.1e}")
    one = problem.select(slice(0, 1))
    for target in (1e-2, 1e-3, 1e-4, 1e-5):
        for name, (solver, begin) in methods.items():
            times = [_seconds(solver, one, begin[:1], target) for _ in range(5)]
            print(f"{name} to {target:g}: {1e3 * min(times):.1f} ms")
    features, labels = one.features[0].double().numpy(), one.labels[0].numpy()
    for tolerance in (1e-1, 1e-2, 1e-3, 1e-4):
        model = LogisticRegression(C=1e8, fit_intercept=False, tol=tolerance, max_iter=2000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begun = time.perf_counter()
            model.fit(features, labels)
            spent = time.perf_counter() - begun
        gap = one.value(torch.as_tensor(model.coef_).flatten()[None].float()) / math.log(10)
        print(f"LogisticRegression, tol {tolerance:g}: {1e3 * spent:.1f} ms, gap {float(gap):.1e}")


def _seconds(solver, problem, begin, target):
    found = run(solver, problem, begin, 500, target_value=torch.full_like(begin[:, 0], target * math.log(10)))
    return float(found.history.seconds[-1])


if __name__ == "__main__":
    main()
