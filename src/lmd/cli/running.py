"""Experiments: `lmd demo`, `lmd reproduce`, and `lmd report` on what they wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lmd.cli.common import JSON, PRESET, SEED, print_json, print_table
from lmd.core.extras import MissingError
from lmd.errors import FileError, LmdError


@click.command()
@click.option("--out", default="demo", show_default=True, help="Folder for the page and the results.")
@SEED
@JSON
def demo(out: str, seed: int, as_json: bool) -> None:
    """Take the tour: run one experiment of each kind at quick size and write a page that compares the methods.

    \b
    Example
      lmd demo --out demo
    """
    import torch

    from lmd.core.files import writable_folder
    from lmd.reproduction import experiments

    folder = writable_folder("out", out)
    torch.set_num_threads(1)  # small problems, on which several threads of a busy machine wait for each other
    _reproduce_all(experiments.TOUR, folder, "quick", seed, as_json=as_json)


@click.command()
@click.argument("name")
@PRESET
@click.option("--out", default="results", show_default=True, help="Results go to OUT/NAME.")
@SEED
@click.option("--retrain", is_flag=True, help="Train anew where a trained solver ships.")
@click.option("--images", help="A folder of images, or an .npz with `images`, in place of the test images.")
@click.option("--data-dir", help="A folder with MNIST or STL-10 in it, in place of the one LMD_DATA names.")
@JSON
def reproduce(
    name: str,
    preset: str,
    out: str,
    seed: int,
    retrain: bool,
    images: str | None,
    data_dir: str | None,
    as_json: bool,
) -> None:
    """Run the experiment NAME (or all) and write its numbers and figures.

    \b
    Writes OUT/NAME/metrics.json, OUT/NAME/figures/*.png, OUT/NAME/run.log.jsonl and OUT/index.html.
    With `all`, --images is for the experiments that have test images. One that fails is skipped; the page says so.
    Examples
      lmd reproduce simplex --preset standard --out results
      lmd reproduce denoise --preset standard --images my-photographs
      lmd reproduce all
    """
    from lmd.core.checks import check_choice
    from lmd.core.files import writable_folder
    from lmd.data import read_images
    from lmd.data.mnist import named_folder
    from lmd.reproduction import experiments

    chosen = experiments.names()
    if name != "all":
        chosen = [check_choice("experiment", name, (*experiments.names(), "all"))]
    if images is not None:
        read_images(images)  # what is wrong with them is said before anything is run
    if data_dir is not None:
        os.environ["LMD_DATA"] = str(named_folder("data-dir", data_dir))
    folder = writable_folder("out", out)
    _reproduce_all(chosen, folder, preset, seed, retrain=retrain, images=images, as_json=as_json)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--paper", type=click.Path(path_type=Path), help="Also write the paper, number by number, as Markdown.")
def report(folder: Path, paper: Path | None) -> None:
    """Write one self-contained page of every experiment under FOLDER.

    \b
    Examples
      lmd report results
      lmd report results --paper paper.md
    """
    from lmd.reproduction.experiments import read
    from lmd.reproduction.experiments.paper import write_paper
    from lmd.reproduction.report.page import write_page

    click.echo(f"page: {write_page(folder, read)}")
    if paper is not None:
        click.echo(f"paper: {write_paper(folder, paper)}")


def _reproduce_all(
    names: Sequence[str],
    out: Path,
    preset: str,
    seed: int,
    *,
    retrain: bool = False,
    images: str | None = None,
    as_json: bool,
) -> None:
    """Run experiments one after the other, as they measure seconds, print their tables and write the page.

    Of several, one that fails is skipped: the others are run, the page says which is missing, and the exit code is 1.
    """
    import torch

    from lmd.reproduction import experiments
    from lmd.reproduction.experiments.base import reproduce as reproduce_experiment
    from lmd.reproduction.report.page import write_page

    if len(names) > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # most have problems too small for several threads, and numbers are those of one
    skipped: dict[str, str] = {}
    for place, name in enumerate(names, 1):
        experiment = experiments.get(name)
        passed_on = images if len(names) == 1 or experiment.imaging else None
        shown = sys.stderr.isatty()
        if shown and len(names) > 1:
            click.echo(f"{place} of {len(names)}: {experiment.title} ...", err=True)
        try:
            reproduce_experiment(experiment, out, preset, seed, retrain=retrain, progress=shown, images=passed_on)
        except Exception as error:
            if len(names) == 1 or _stops_all(error):
                raise
            skipped[name] = " ".join(f"{'' if isinstance(error, LmdError) else type(error).__name__} {error}".split())
            click.echo(f"lmd: skipped {name}: {skipped[name]}", err=True)
            continue
        if not as_json:
            _print_tables(out / name / "metrics.json")
    if len(skipped) == len(names):
        raise LmdError(f"all {len(names)} experiments failed, and there is no page")
    page = write_page(out, experiments.read, skipped=skipped)
    if as_json:
        found = {name: str(out / name / "metrics.json") for name in names if name not in skipped}
        print_json({"page": str(page), "metrics": found, "skipped": skipped})
    else:
        click.echo(f"\nThe page with all figures: {page}")
    if skipped:
        sys.exit(1)


def _stops_all(error: Exception) -> bool:
    """Whether the other experiments would fail as well: nothing can be written, or a package is missing."""
    unwritable = isinstance(error, FileError) and error.argument == "out"
    return unwritable or isinstance(error, MissingError) or bool(os.environ.get("LMD_DEBUG"))


def _print_tables(path: Path) -> None:
    """Print the tables of a metrics.json."""
    from lmd.reproduction import experiments
    from lmd.reproduction.report.metrics import read_metrics

    metrics = read_metrics(path)
    click.echo(f"\n{metrics['title']} ({metrics['paper']}, {metrics['preset']}, {metrics['seconds']:.1f} s)")
    for table in experiments.read(metrics).tables:
        print_table(table)
