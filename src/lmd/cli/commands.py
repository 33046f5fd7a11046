"""The small commands of the library: `lmd info`, `lmd import`."""

from __future__ import annotations

from pathlib import Path

import click

from lmd.cli.common import JSON, print_json


@click.command()
@JSON
def info(as_json: bool) -> None:
    """Show versions, the compiled code in use, threads, devices, extras and the cache.

    \b
    Example
      lmd info --json
    """
    from lmd.cli.info import info, told

    found = info()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(told(found)))


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
    click.echo(
        f"solver: {Path(out)} ({sum(p.numel() for p in solver.parameters())} parameters, horizon {solver.horizon})"
    )
