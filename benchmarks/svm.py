"""Support vector machines on features of the test fold: the trained interior-point solver beside scikit-learn's SVC.

    python benchmarks/svm.py

Milliseconds for 100 data sets together and for one alone after each number of iterations, with the relative gaps that
they leave, and the same of `SVC(kernel="linear")` one after the other, for ever smaller tolerances.
"""

import statistics
import time

import torch
from sklearn.svm import SVC

from lmd import zoo
from lmd.tasks.sources import HeldOut
from lmd.tasks.svm import SOURCE


def milliseconds(call, repeats):
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(times)


def said(gaps):
    return f"gap: median {gaps.median():.1e}, mean {gaps.mean():.1e}, 95% {gaps.quantile(0.95):.1e}"


def main():
    family = SOURCE.held_out(SOURCE.train("standard"), HeldOut("standard", subsets=100))
    problem, x0 = family.sample(100, torch.Generator().manual_seed(7))
    solver, exact = zoo.load("svm-interior-10"), problem.double()
    one, first = problem.select(slice(0, 1)), x0[:1]
    with torch.no_grad():
        least = exact.value(solver.advance(problem, solver.init(problem, x0), 18).x.double())
        for count in (7, 8, 9, 10):
            x = solver.advance(problem, solver.init(problem, x0), count).x.double()
            batch = milliseconds(lambda: solver.advance(problem, solver.init(problem, x0), count), 5)  # noqa: B023
            alone = milliseconds(lambda: solver.advance(one, solver.init(one, first), count), 15)  # noqa: B023
            print(f"{count} iterations: {batch:.1f} ms, one {alone:.2f} ms; {said((exact.value(x) - least) / least)}")
    features, labels = problem.features.double().numpy(), problem.labels.numpy()
    for tolerance in (1e-1, 1e-2, 5e-3, 1e-3):
        models = [SVC(kernel="linear", C=problem.C, tol=tolerance) for _ in features]
        spent = milliseconds(lambda: [m.fit(*pair) for m, *pair in zip(models, features, labels, strict=True)], 1)  # noqa: B023
        x = torch.stack([torch.tensor([*model.coef_[0], *model.intercept_]) for model in models])
        gaps = (exact.value(x) - least) / least
        print(f"SVC, tol {tolerance:g}: {spent:.0f} ms, one {spent / len(models):.2f} ms; {said(gaps)}")


if __name__ == "__main__":
    main()
