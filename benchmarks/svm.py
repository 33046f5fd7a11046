"""Support vector machines on features of the test fold: the trained interior-point solver beside scikit-learn's SVC.

    python benchmarks/svm.py

Milliseconds for 100 data sets together and for one alone after each number of iterations, with the relative gaps that
they leave, and the same of `SVC(kernel="linear")` one after the other, for ever smaller tolerances. Then the mean gaps
of the solver, and of L-BFGS and the interior-point method from the mean of twenty training optima, by iteration.
"""

import statistics
import time

import torch
from sklearn.svm import SVC

from lmd import run, zoo
from lmd.reproduction.tasks.task import HeldOut, optimum
from lmd.reproduction.tasks.vectors import SVM_DIGITS
from lmd.solvers import LBFGS
from lmd.solvers.classical.interior_point import InteriorPoint


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
    family = SVM_DIGITS.held_out(SVM_DIGITS.train("standard"), HeldOut("standard", subsets=100))
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
    by_iteration(problem, x0, solver, least)


def by_iteration(problem, x0, solver, least):
    generator, family = torch.Generator().manual_seed(3_000_000), SVM_DIGITS.train("standard")
    mean = torch.stack([optimum(family.sample(1, generator)[0]).x[0] for _ in range(20)]).mean(dim=0)
    start = mean.to(x0).expand_as(x0).contiguous()
    runs = {"learned": run(solver, problem, x0, 20), "L-BFGS": run(LBFGS(), problem, start, 20)}
    runs["interior point"] = run(InteriorPoint(), problem, start, 20)
    for name, found in runs.items():
        gaps = ((found.history.values.double() - least) / least).mean(dim=1)
        print(f"{name}, iterations 1 to 20: {' '.join(f'{gap:.1e}' for gap in gaps[1:])}")


if __name__ == "__main__":
    main()
