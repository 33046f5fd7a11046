"""`lmd check`: load a solver, diagnose it, and write the findings as JSON and a figure."""

from __future__ import annotations

import math
import os
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd import guarantees, zoo
from lmd.cli.common import Table
from lmd.core.checks import check_choice
from lmd.core.files import read_json, staged, writable_folder, write_json
from lmd.errors import CapabilityError, InputError
from lmd.guarantees import Monitor, Promise, promise
from lmd.guarantees.diagnosis import Diagnosis, Finding, diagnose
from lmd.problems.base import Family
from lmd.reproduction import recipes
from lmd.reproduction.figures import figure
from lmd.reproduction.tables import number
from lmd.reproduction.tasks.task import gap_scale
from lmd.solvers.base import Solver
from lmd.solvers.saving import SOLVER_FILE
from lmd.training.instances import stack_instances
from lmd.training.settings import training_seed

TARGET = 1e-2  # the relative gap to test where the solver's card promises none
RUNS = 100  # instances that a promise about a class is tested on
PRESET = "quick"  # the size of the families that a solver of the zoo is checked on


def check(
    name: str | Path,
    out: str | Path | None = None,
    *,
    family: Family | str | None = None,
    batch: int = 16,
    iterations: int = 1000,
    seed: int = 0,
) -> Diagnosis:
    """Diagnose a solver of the zoo or of a folder; with `out`, write OUT/check.json and OUT/check.png.

    A folder that `lmd train NAME` wrote is checked on the family of NAME; any other folder needs a `family`: a Family,
    the name of a solver trained on it, or MODULE:FAMILY. A promise on the solver's card about its class is tested on
    new instances; without one, the promise that could be made is reported.
    """
    solver = zoo.load(name, bare=True)
    if family is None:
        sampled = family_of(name)
    else:
        sampled = named_family(family) if isinstance(family, str) else family
    folder = None if out is None else writable_folder("out", out)
    kind = sampled.sample(batch, torch.Generator().manual_seed(seed))[1].dtype
    known = partial(guarantees.minimum, cache=guarantees.OptimumCache())
    found = diagnose(solver.to(kind), sampled, batch=batch, iterations=iterations, seed=seed, minimum_of=known)
    shares = promise_findings(solver, sampled, batch, seed, known)
    found = replace(found, findings=(*found.findings, *shares))
    if folder is not None:
        with staged("out", folder) as staging:
            write_check(found, staging, str(name))
    return found


@torch.no_grad()
def promise_findings(
    solver: Solver[Any], family: Family, batch: int, seed: int, minimum_of: Callable[[Any], Tensor]
) -> list[Finding]:
    """Test the promise on the solver's card about the share of a class within a target, or find what could be promised.

    A promise is broken if a `Monitor` detects on new instances that the class has changed. The list is empty if minima
    are not known.
    """
    card = solver.card
    said = Promise(**card["promise"]) if "promise" in card else None
    target, count = (TARGET, solver.horizon or 10) if said is None else (said.target, said.iterations)
    seeds = [training_seed(seed, place) for place in range(batch if said is None else RUNS)]
    singles = [family.sample(1, torch.Generator().manual_seed(each)) for each in seeds]  # independent of each other
    gaps = []
    for problem, x0 in stack_instances(singles):
        try:
            least = minimum_of(problem.double() or problem).double()
        except CapabilityError:
            return []
        x = solver.advance(problem, solver.init(problem, x0), count).x
        values, violation = problem.relaxed_value(x)
        outside = violation / torch.linalg.vector_norm(x.flatten(1), dim=1).clamp(min=torch.finfo(x.dtype).tiny)
        gaps.append((values.double() - least) / gap_scale(problem, least, x0).where(least >= 0, -least) + outside)
    name, found = f"share within {target:g} after {count} iterations", promise(torch.cat(gaps), target, count)
    if said is None:
        return [Finding("its family", f"{name}, with confidence {found.confidence:.0%} at least", found.share)]
    kept = not Monitor(said).see(torch.cat(gaps))
    return [Finding("its family", name, found.within / found.runs, f"at least {said.share:.3g} of the class", kept)]


def import_family(name: str) -> Family:
    """Import a family by its name "module:Family"; a class is instantiated without arguments."""
    accepted = "module:Family, such as my_module:MyFamily, to be imported from here"
    sys.path.insert(0, os.getcwd())
    try:
        found = pkgutil.resolve_name(name) if ":" in name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError("family", f"{name!r} ({error})", accepted) from None
    finally:
        sys.path.pop(0)
    family = found() if isinstance(found, type) and issubclass(found, Family) else found
    if not isinstance(family, Family):
        raise InputError("family", repr(name), accepted)
    return family


def named_family(name: str) -> Family:
    """Return the family MODULE:FAMILY, or the family that the solver `name` is trained on.

    If training samples from a pool that is solved beforehand, return the family of the pool, to sample new instances.
    """
    if ":" in name:
        return import_family(name)
    known = check_choice("family", name, tuple(recipes.names()))
    return recipes.recipe(known).family(PRESET).inside


def family_of(name: str | Path) -> Family:
    """Return the family a solver was trained on, from its name or from the command stored in its folder."""
    if str(name) in zoo.names():
        return named_family(str(name))
    card = read_json(Path(name) / SOLVER_FILE).get("card")
    words = str(card.get("command")).split() if isinstance(card, dict) else []
    if words[:2] == ["lmd", "train"] and len(words) > 2:
        trained = words[2]
        if trained in recipes.names():
            return named_family(trained)
    accepted = f"one to check {name} on, named like the solver that is for it, as the folder does not say"
    raise InputError("family", "none", accepted)


def check_table(found: Diagnosis) -> Table:
    """One line per finding."""
    lines = tuple(
        (f.variant, f.name, number(f.value), f.promise and f"{'kept' if f.holds else 'BROKEN'}: {f.promise}")
        for f in found.findings
    )
    return Table("", ("family", "what", "measured", "promise"), lines)


def write_check(found: Diagnosis, folder: Path, title: str) -> None:
    """Write the findings as JSON, and a figure of the values over the iterations, alone and guarded."""
    findings = [
        {"family": f.variant, "what": f.name, "value": f.value if math.isfinite(f.value) else None, "holds": f.holds}
        | ({"promise": f.promise} if f.promise else {})
        for f in found.findings
    ]
    write_json(folder / "check.json", {"solver": title, "broken": len(found.broken), "findings": findings})
    with figure(4.2 * len(found.curves), 3.6) as drawing:
        for place, (variant, curves) in enumerate(found.curves.items(), start=1):
            axes = drawing.add_subplot(1, len(found.curves), place)
            for label, values in curves.items():
                colour, style = {"alone": ("#7b3fb5", "solid"), "guarded": ("#2ca02c", (0, (4, 1.5)))}[label]
                axes.plot(range(1, len(values) + 1), values.double(), label=label, color=colour, linestyle=style)
            axes.set_xscale("log")
            if all(float(values.min()) > 0 for values in curves.values()):
                axes.set_yscale("log")
            axes.legend(frameon=False)
            axes.set(title=variant, xlabel="iteration + 1", ylabel="mean value" if place == 1 else "")
        drawing.savefig(folder / "check.png", metadata={"Software": None})
