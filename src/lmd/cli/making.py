"""Solvers: `lmd train`, `lmd learn`, `lmd import`."""

from __future__ import annotations

from pathlib import Path

import click

from lmd.cli.common import JSON, PRESET, SEED, Number, print_json, print_table
from lmd.core.extras import MissingError


@click.command()
@click.argument("name")
@PRESET
@click.option("--out", help="Folder of the run.  [default: runs/NAME]")
@SEED
@click.option("--resume", is_flag=True, help="Continue the run in OUT.")
def train(name: str, preset: str, out: str | None, seed: int, resume: bool) -> None:
    """Train the solver NAME from its recipe; `lmd list` shows the names.

    \b
    The folder can be given to lmd.zoo.load. --resume continues a run that was killed.
    Example
      lmd train least-squares-quadratic-10 --preset standard --out runs/mine
    """
    from lmd import zoo

    folder = Path(out) if out else Path("runs") / zoo.current_name(name)
    zoo.train_recipe(name, preset, out=folder, seed=seed, resume=resume)
    click.echo(f"trained solver: {folder}")


@click.command()
@click.argument("family", metavar="MODULE:FAMILY")
@click.option("--minutes", type=Number(), default=10.0, show_default=True, help="Minutes to learn for.")
@click.option("--target", type=Number(), default=1e-3, show_default=True, help="The relative gap to reach.")
@click.option("--out", help="Folder of the run.  [default: runs/FAMILY]")
@SEED
@click.option("--resume", is_flag=True, help="Continue the run in OUT.")
@JSON
def learn(family: str, minutes: float, target: float, out: str | None, seed: int, resume: bool, as_json: bool) -> None:
    """Learn the fastest solver for a class of problems of your own: FAMILY in MODULE samples them.

    \b
    The folder can be given to lmd.solvers.load, and has a page with curves.
    --resume continues a run that was killed.
    Example
      lmd learn examples.own_problem:HuberFamily --minutes 2 --out runs/mine
    """
    from lmd.reproduction.experiments.own_class import write_learned
    from lmd.reproduction.report.tables import Table
    from lmd.training import card_rows, family_named, learn

    folder = Path(out) if out else Path("runs") / family.rpartition(":")[2]
    found = learn(
        family_named(family),
        minutes,
        folder,
        target,
        seed=seed,
        resume=resume,
        progress=lambda line: click.echo(line, err=True),
    )
    try:
        page = f"page: {write_learned(found.card, folder, f'lmd learn {family} --minutes {minutes:g} --seed {seed}')}"
    except MissingError as error:
        page = f"no page: {error}"
    if as_json:
        print_json(found.card)
    else:
        winner = f"{found.card['winner']} it is: {found.card['batch']} instances together, and one alone"
        print_table(Table(winner, *card_rows(found.card)))
        click.echo(f"{found.card['promised']}\nlearned solver: {folder}\n{page}")


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
