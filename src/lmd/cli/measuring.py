"""How good they are: `lmd bench`, `lmd check`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from lmd.cli.common import SEED, Integer, Number, print_table
from lmd.errors import InputError


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--images", help="A folder of images, or an .npz with `images`, in place of the test images.")
@click.option("--json", "json_file", metavar="FILE", help="Write the numbers to FILE.")
@click.option("--out", metavar="DIR", help="Write DIR/bench/metrics.json and figures.")
@click.option("--methods", metavar="NAME,...", help="Only these methods and peers.")
@click.option("--noise", metavar="PERCENT,...", help="Only these noise levels.")
@click.option("--count", type=Integer(1, 100_000), help="How many test images.  [default: 20]")
@click.option("--repeats", type=Integer(1, 1000), help="How often each time is measured.  [default: 7]")
@click.option("--gaps", metavar="GAP,...", help="The relative gaps to time.  [default: 1e-1,...,1e-6]")
@click.option("--limit", type=Number(0, min_open=True), help="Seconds for each method.  [default: 20]")
@click.option("--sizes", metavar="SIDE,...", help="One photograph at these sizes, such as 96,512,2048.")
@click.option("--quick", is_flag=True, help="A few small images: seconds for each task.")
@SEED
def bench(names: tuple[str, ...], json_file: str | None, out: str | None, quick: bool, **choices: Any) -> None:
    """Compare every solver and every peer on the tasks NAME (all by default), per iteration and per second.

    \b
    `lmd list` shows the tasks. For the task `models`, name its models instead: huber, volume, counts, ...
    Examples
      lmd bench denoise --noise 5 --json bench.json
      lmd bench denoise --noise 5 --sizes 96,512,2048 --gaps 1e-1,1e-2,1e-3,1e-4 --out results
      lmd bench --images my-photographs --out results
    """
    from rich.console import Console

    from lmd.core.files import writable_folder, writable_name
    from lmd.reproduction.bench import Plan, run_bench
    from lmd.reproduction.bench.report import write
    from lmd.reproduction.bench.tables import bench_tables

    given = _bench_choices(names, choices)
    plan = Plan.quick(**given) if quick else Plan(**given)
    plan.check()
    json_path = None
    if json_file is not None:
        writable_folder("json", Path(json_file).parent)
        json_path = writable_name("json", json_file)
    folder = None if out is None else writable_folder("out", out)
    with Console(stderr=True).status("bench") as status:
        found = run_bench(plan, status.update)
    write(found, json_path, folder)
    for table in bench_tables(found.rows):
        print_table(table)
    for fact, text in found.facts.items():
        click.echo(f"{fact}: {text}")
    for skipped in found.skipped:
        click.echo(f"skipped: {skipped}")


def _bench_choices(names: tuple[str, ...], choices: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a bench's plan that were given on the command line."""
    given = {key: value for key, value in choices.items() if value is not None}
    for key, kind, words in (
        ("noise", int, "whole numbers"),
        ("sizes", int, "whole numbers"),
        ("gaps", float, "numbers"),
    ):
        if key in given:
            try:
                given[key] = tuple(kind(word) for word in given[key].split(","))
            except ValueError:
                raise InputError(key, repr(given[key]), f"{words} with commas between them") from None
    if "methods" in given:
        given["methods"] = tuple(given["methods"].split(","))
    if "images" in given:
        from lmd.data import read_images

        given["images"] = Path(given["images"])
        read_images(given["images"])  # what is wrong with them is said before anything is run
    return {"problems": names, **given} if names else given


@click.command()
@click.argument("solver")
@click.option("--out", default="check", show_default=True, help="Folder for check.json and check.png.")
@click.option(
    "--iterations", type=Integer(1, 100_000), default=1000, show_default="1000", help="Number of iterations to run."
)
@click.option(
    "--family",
    metavar="NAME",
    help="The family to check on: that of the solver NAME, or MODULE:FAMILY.  [default: that of SOLVER]",
)
@SEED
def check(solver: str, out: str, iterations: int, family: str | None, seed: int) -> None:
    """Check whether SOLVER, a name or a folder, keeps its promises on its family and on harder problems.

    \b
    The exit code is 1 if a promise is broken, also one that `lmd learn` made about its class.
    Solvers of `lmd import` and `lmd learn` do not store their family: name it with --family.
    Examples
      lmd check least-squares-quadratic-10 --out check
      lmd check solvers/inpainting --family inpaint-pair-10
    """
    from lmd.reproduction.experiments.check import check as check_solver
    from lmd.reproduction.experiments.check import check_table

    found = check_solver(solver, out, family=family, iterations=iterations, seed=seed)
    print_table(check_table(found))
    click.echo(f"figure: {Path(out) / 'check.png'}")
    if found.broken:
        sys.exit(1)
