"""The commands `lmd info` and `lmd import`."""

from __future__ import annotations

import platform
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from lmd import __version__
from lmd.cli.common import JSON, print_json
from lmd.core.extras import EXTRAS
from lmd.core.files import cache_folder


@click.command()
@JSON
def info(as_json: bool) -> None:
    """Show versions, the compiled code in use, threads, devices, extras and the cache.

    \b
    Example
      lmd info --json
    """
    facts = _facts()
    if as_json:
        print_json(facts)
        return
    lines = {name: facts[name] for name in ("lmd", "python", "torch", "threads", "cache")}
    lines["kernels"] = facts["kernels"] or "none: everything works, more slowly; install a wheel, or with a C compiler"
    lines["devices"] = ", ".join(facts["devices"])
    for extra, modules in facts["extras"].items():
        here = ", ".join(f"{module} {number}" for module, number in modules.items() if number)
        absent = ", ".join(module for module, number in modules.items() if not number)
        advice = f"; not installed: {absent} (pip install 'lmd[{extra}]')" if absent else ""
        lines[extra] = f"{here or 'nothing'}{advice}"
    click.echo("\n".join(f"{name:12s} {line}" for name, line in lines.items()))


def _facts() -> dict[str, Any]:
    import torch

    from lmd import kernels

    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    packages = packages_distributions()

    def version_of(module: str) -> str | None:
        return None if find_spec(module) is None else version(packages[module][0]) if module in packages else "?"

    return {
        "lmd": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": kernels.instructions(),
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])],
        "extras": {extra: {module: version_of(module) for module in modules} for extra, modules in EXTRAS.items()},
        "cache": str(cache_folder()),
    }


@click.command("import")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--out", required=True, help="Folder for the solver.")
def import_command(checkpoint: Path, out: str) -> None:
    """Convert a published CHECKPOINT, a file that torch.save wrote, to a solver of lmd.

    \b
    The folder can be given to lmd.zoo.load.
    Example
      lmd import inpainting_780 --out solvers/inpainting
    """
    from lmd.core.files import staged
    from lmd.solvers import save
    from lmd.zoo.published import import_checkpoint

    solver = import_checkpoint(checkpoint)
    with staged("out", Path(out)) as folder:
        save(solver, folder, card={"imported_from": checkpoint.name})
    count = sum(parameter.numel() for parameter in solver.parameters())
    click.echo(f"solver: {Path(out)} ({count} parameters, horizon {solver.horizon})")
