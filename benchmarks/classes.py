"""Twenty-six classes in three sizes: what the default of `lmd.solve` ends with, and how far it is from other solvers.

    python benchmarks/classes.py [--quick] [--classes lasso,svm] [--sizes small,medium] [--json classes.json]

For each class and size, to a relative gap of 1e-6 in float64 on one thread: how many instances end proven, the largest
true relative gap, milliseconds of the processor for one
instance and for a batch, from arrays to x; the fastest other method of the
package; the fastest other package, one instance after the other, warm started where it can be, with the loosest
tolerance that reaches 1e-6. True gaps come from reference minima that are proven to 1e-9 (classes/base.py), constraints
count as exact penalties. `-` is what does not get there in time. Marks: `not finite`, `certificate` for a bound below
the true gap, `claim` for a status that says 1e-6 where it is not. Exit code 1 for the first two.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import threadpoolctl
import torch
from classes import modules
from classes.base import SIZES, Reference, Sample
from classes.peers import available

import lmd
from lmd.errors import CapabilityError
from lmd.problems import PenalisedProblem
from lmd.solvers import ADMM, FGP, LBFGS, PDHG, Nesterov, ProximalGradient, RelaxedPDHG
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.qp_interior_point import QPInteriorPoint
from lmd.solvers.result import Status

TOLERANCE = 1e-6
LADDER = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12)  # tolerances that other packages are given
MAX_WAIT = 20.0  # seconds by the clock for each second of the processor, which others may use as well
MIN_PROCESSOR_SECONDS = 0.05
MAX_REPEATS, MAX_REPEAT_SECONDS = 7, 0.3
SLOW_PEERS = ("skglm",)  # which compile for seconds; --quick leaves them out
IMPORTED = ("sklearn.linear_model", "sklearn.svm", "sklearn.covariance", "celer", "osqp", "daqp", "piqp", "proxsuite")

Row = dict[str, Any]
Send = Callable[[Row], None]


@dataclass(frozen=True)
class Budget:
    """How much is run; times are those of the processor, on one thread, which other programs hardly disturb."""

    batch: int
    checked: int  # instances of which the true gap is measured
    seconds: float  # of a method

    @property
    def reference_seconds(self) -> float:
        return 20 * self.seconds


QUICK, FULL = Budget(10, 3, 1.0), Budget(100, 5, 2.0)

OWN: dict[str, Callable[[Any], Any]] = {
    "FGP": lambda problem: FGP(restart=True),
    "PDHG": lambda problem: PDHG(),
    "RelaxedPDHG": lambda problem: RelaxedPDHG(),
    "ADMM": lambda problem: ADMM().double(),
    "QPInteriorPoint": lambda problem: QPInteriorPoint(),
    "InteriorPoint": lambda problem: InteriorPoint(),
    "LBFGS": lambda problem: LBFGS(),
    "Nesterov": lambda problem: Nesterov(1.0),
    "ProximalGradient": lambda problem: ProximalGradient(),
}


def isolated(work: Callable[[Send], None], seconds: float) -> list[Row]:
    """Return what a function sends from a process of its own, until it ends, fails or runs out of processor time."""
    context, found = multiprocessing.get_context("fork"), []
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1), os.dup2(1, 2)  # solvers print
        try:
            work(sender.send)
        except Exception as error:  # any package may raise anything
            sender.send({"failure": f"{type(error).__name__}: {' '.join(str(error).split()):.100}"})

    process, end = context.Process(target=run, daemon=True), time.monotonic() + MAX_WAIT * seconds
    process.start()
    sender.close()
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            found.append(receiver.recv())
    except EOFError:
        process.join(5)
        if process.exitcode == -signal.SIGXCPU:
            found.append({"failure": f"more than {seconds:.0f} s"})
        elif process.exitcode not in (0, None):
            found.append({"failure": f"exit code {process.exitcode}"})
    else:
        found.append({"failure": f"more than {MAX_WAIT * seconds:.0f} s by the clock"})
    if process.is_alive():
        process.kill()
    process.join()
    return found


def merged(rows: list[Row]) -> Row:
    """Return one row from the parts of it."""
    return {name: value for row in rows for name, value in row.items()}


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call: those of the processor, unless it is too short for its clock."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return wall if wall < MIN_PROCESSOR_SECONDS else processor


def milliseconds(prepare: Callable[[], Callable[[], object]], first: float = 0.0) -> float:
    """Return the least time of some calls, each prepared anew; `first` are the seconds of one before."""
    times = [first] if first > MAX_REPEAT_SECONDS else []
    while len(times) < MAX_REPEATS and sum(times) <= MAX_REPEAT_SECONDS:
        times.append(seconds_of(prepare()))
    return 1e3 * min(times)


def solve_with(sample: Sample, make: Callable[[Any], Any] | None) -> Any:
    """Return the result of `lmd.solve`, from arrays."""
    problem = sample.build()
    x0 = problem.problem.start() if isinstance(problem, PenalisedProblem) else None  # which has no start of its own
    return lmd.solve(problem, TOLERANCE, x0=x0, solver=None if make is None else make(problem))


def judge(sample: Sample, result: Any, checked: int) -> Row:
    """Return the true gaps of a result, and what it says that is not so."""
    points, bound = result.x.detach().numpy(), None
    finite = bool(np.isfinite(points).all())
    if result.certificate is not None and getattr(result.certificate, "bound", None) is not None:
        bound = result.certificate.bound.double().expand(len(points)).numpy()
    errors, below, claims = [], 0, 0
    for i in range(min(checked, len(points))):
        size, error = abs(sample.reference(i).value), sample.error(i, points[i])
        errors.append(float(error) / size)
        below += bound is not None and float(bound[i]) < float(error - 2e-9 * size)
        claims += result.status[i] is Status.TOLERANCE_REACHED and float(error) > (1 + 1e-3) * TOLERANCE * size
    names = [status.name for status in result.status]
    return {
        "statuses": {name: names.count(name) for name in sorted(set(names))},
        "true_gap": max(errors),
        "not_finite": not finite,
        "certificates_below": below,
        "claims": claims,
    }


def measure_own(samples: tuple[Sample, Sample], make: Any, budget: Budget, send: Send) -> None:
    """Send status, true gap and times of a method of the package, for one instance and for the batch."""
    for name, sample in zip(("one", "batch"), samples, strict=True):
        begun = time.process_time()
        result = solve_with(sample, make)
        first = time.process_time() - begun
        row = judge(sample, result, budget.checked)
        send({"solver": type(result.solver).__name__, name: row})
        row["milliseconds"] = milliseconds(lambda sample=sample: partial(solve_with, sample, make), first)
        send({name: row})
        if make is not None and row["true_gap"] > TOLERANCE:
            break  # no need to try the batch


def measure_peer(samples: tuple[Sample, Sample], prepare: Any, budget: Budget, send: Send) -> None:
    """Send the times of another package with the loosest tolerance that reaches the gap."""
    sample = samples[1]
    for tolerance in LADDER:
        solve = prepare(sample, tolerance)
        gap = max(sample.relative_error(i, solve(i)) for i in range(min(budget.checked, len(sample))))
        if gap <= TOLERANCE:
            break
        if tolerance == LADDER[-1]:
            raise ArithmeticError(f"a true gap of {gap:.1e} at best")
    send({"tolerance": tolerance, "true_gap": gap})
    for name, each in zip(("one", "batch"), samples, strict=True):
        send({name: {"milliseconds": milliseconds(partial(_loop, each, prepare, tolerance))}})


def _loop(sample: Sample, prepare: Any, tolerance: float) -> Callable[[], object]:
    """Return a function that solves one instance after the other."""
    solve = prepare(sample, tolerance)
    return lambda: [solve(i) for i in range(len(sample))]


def find_references(samples: tuple[Sample, Sample], budget: Budget, send: Send) -> None:
    """Send the reference minima of the instances that are checked."""
    for place, sample in enumerate(samples):
        for i in range(min(budget.checked, len(sample))):
            send({"place": place, "i": i, "reference": sample.reference(i)})


def draw(module: ModuleType, size: str, budget: Budget) -> tuple[Sample, Sample]:
    """Return one instance and a batch."""
    one, batch = (module.sample(size, count, np.random.default_rng(0)) for count in (1, budget.batch))
    return one, batch


class Table:
    """Rows of all classes, printed as they come; methods that failed at a size are not tried at larger ones."""

    def __init__(self, budget: Budget, path: Path | None, is_quick: bool, has_own: bool) -> None:
        self.budget, self.path, self.is_quick, self.has_own, self.rows = budget, path, is_quick, has_own, []
        self.failed: set[tuple[str, str]] = set()

    def measure(self, name: str, module: ModuleType, size: str) -> None:
        row: Row = {"class": name, "size": size, "own": {}, "peers": {}}
        try:
            self._measure(row, draw(module, size, self.budget))
        except Exception as error:
            row["failure"] = f"{type(error).__name__}: {' '.join(str(error).split()):.150}"
        self.rows.append(row)
        print(line(row), flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps({"tolerance": TOLERANCE, "rows": self.rows}, indent=1, default=float))

    def _measure(self, row: Row, samples: tuple[Sample, Sample]) -> None:
        budget, name = self.budget, row["class"]
        row["variables"] = samples[1].size
        for found in isolated(partial(find_references, samples, budget), budget.reference_seconds):
            if "failure" in found:
                raise ArithmeticError(f"no reference: {found['failure']}")
            assert isinstance(found["reference"], Reference)
            samples[found["place"]].known[found["i"]] = found["reference"]
        if samples[1].build is None:
            row["reason"] = samples[1].reason
        else:
            work = partial(measure_own, samples, None, budget)
            row["default"] = merged(isolated(work, 3 * budget.seconds))
            for method, make in OWN.items() if self.has_own else ():
                work = partial(measure_own, samples, make, budget)
                row["own"] |= self._try(name, method, work, budget.seconds)
        for peer, prepare in available(samples[1]).items():
            if not (self.is_quick and peer in SLOW_PEERS):
                work = partial(measure_peer, samples, prepare, budget)
                row["peers"] |= self._try(name, peer, work, (15 if peer in SLOW_PEERS else 3) * budget.seconds)

    def _try(self, name: str, method: str, work: Callable[[Send], None], seconds: float) -> Row:
        if (name, method) in self.failed:
            return {}
        found = merged(isolated(work, seconds))
        if str(found.get("failure", "")).startswith(CapabilityError.__name__):
            return {}
        if "failure" in found:
            self.failed.add((name, method))
        return {method: found}


def fastest(found: Row, part: str) -> tuple[str, float]:
    """Return the name and milliseconds of the fastest method that reaches the gap."""
    times = {
        name: row[part]["milliseconds"]
        for name, row in found.items()
        if "milliseconds" in row.get(part, {}) and row[part].get("true_gap", 0) <= TOLERANCE
    }
    return min(times.items(), key=lambda each: each[1], default=("-", math.inf))


def is_wrong(row: Row) -> bool:
    """Whether an answer of the default is not finite or a certificate is below the truth."""
    parts = [row.get("default", {}).get(part, {}) for part in ("one", "batch")]
    return any(part.get("not_finite") or part.get("certificates_below") for part in parts)


def marks(row: Row) -> list[str]:
    """Return what is wrong with the answers of the default."""
    parts, found = [row.get("default", {}).get(part, {}) for part in ("one", "batch")], []
    for name, mark in (("not_finite", "not finite"), ("certificates_below", "certificate"), ("claims", "claim")):
        if any(part.get(name) for part in parts):
            found.append(mark)
    for method, own in row["own"].items():
        if any(own.get(part, {}).get("certificates_below") for part in ("one", "batch")):
            found.append(f"certificate of {method}")
    return found


def number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"


HEAD = (
    f"{'class':16} {'size':7} {'n':>4}  {'default':26} {'true gap':>9} {'one, ms':>8} {'batch':>8}  {'best own':33} "
    "best peer: one, batch"
)


def line(row: Row) -> str:
    """Return the row as a line of the table."""
    start = f"{row['class']:16} {row['size']:7} {row.get('variables', ''):>4}  "
    if "failure" in row:
        return f"{start}failed: {row['failure']}"
    default = row.get("default", {})
    one, batch = default.get("one", {}), default.get("batch", {})
    counts = batch.get("statuses") or one.get("statuses") or {}
    ends = ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))
    ends = ends.replace("TOLERANCE_REACHED", "proven").lower() or "-"
    best = []
    for found in (row["own"], row["peers"]):
        name, alone = fastest(found, "one")
        other, together = fastest(found, "batch")
        best.append(f"{name} {number(alone)}; {other} {number(together)}")
    text = f"{start}{ends:26} {number(batch.get('true_gap', one.get('true_gap'))):>9} "
    text += f"{number(one.get('milliseconds')):>8} {number(batch.get('milliseconds')):>8}  {best[0]:33} {best[1]}"
    remarks = [*marks(row), *(default[key] for key in ("failure",) if key in default)]
    if "reason" in row:
        remarks.append(f"not expressible: {row['reason']}")
    return text + (f"  [{'; '.join(remarks)}]" if remarks else "")


def use_one_thread() -> None:
    """Limit every package to one thread, those that are imported later too."""
    torch.set_num_threads(1)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[variable] = "1"
    threadpoolctl.threadpool_limits(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest size, few instances, in two minutes")
    parser.add_argument("--classes", help="names, separated by commas; all without it")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--defaults", action="store_true", help="leave the other methods of the package out")
    parser.add_argument("--json", type=Path, help="write all rows there, after each class")
    given = parser.parse_args()
    use_one_thread()
    for package in IMPORTED:  # once, before processes are forked
        with contextlib.suppress(ImportError):
            importlib.import_module(package)
    known = modules()
    names = list(known) if given.classes is None else given.classes.split(",")
    table = Table(QUICK if given.quick else FULL, given.json, given.quick, not given.defaults)
    print(HEAD)
    for name in names:
        for size in ["small"] if given.quick else given.sizes.split(","):
            table.measure(name, known[name], size)
    return int(any(is_wrong(row) for row in table.rows))


if __name__ == "__main__":
    sys.exit(main())
