"""Experiments: `lmd demo`, `lmd reproduce`, and `lmd report` on what they wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lmd.cli.common import JSON, PRESET, SEED, print_json, print_table


@click.command()
@click.option("--out", default="demo", show_default=True, help="Folder for the page and the results.")
@SEED
@JSON
def demo(out: str, seed: int, as_json: bool) -> None:
    """Take the tour: one experiment of each kind at quick size, the methods compared, on a page.

    \b
    Example
      lmd demo --out demo
    """
    from lmd import experiments
    from lmd.files import writable_folder

    folder = writable_folder("out", out)
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
    With `all`, --images goes to the experiments that have test images.
    Examples
      lmd reproduce simplex --preset standard --out results
      lmd reproduce denoise --preset standard --images my-photographs
      lmd reproduce all
    """
    from lmd import experiments
    from lmd.checks import check_choice
    from lmd.data import read_images
    from lmd.data.mnist import named_folder
    from lmd.files import writable_folder

    chosen = experiments.names()
    if name != "all":
        chosen = [check_choice("experiment", name, (*experiments.names(), "all"))]
    if images is not None:
        read_images(images)  # what is wrong with them is said before anything is run
    if data_dir is not None:
        os.environ["LMD_DATA"] = str(named_folder("data_dir", data_dir))
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
    from lmd.experiments import read
    from lmd.experiments.paper import write_paper
    from lmd.report.page import write_page

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
    """Run experiments one after the other, as they measure seconds, print their tables and write the page."""
    import torch

    from lmd import experiments
    from lmd.experiments.base import reproduce as reproduce_experiment
    from lmd.report.metrics import read_metrics
    from lmd.report.page import write_page

    if len(names) > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # most have problems too small for several threads, and numbers are those of one
    for name in names:
        experiment = experiments.get(name)
        passed_on = images if len(names) == 1 or experiment.imaging else None
        shown = sys.stderr.isatty()
        reproduce_experiment(experiment, out, preset, seed, retrain=retrain, progress=shown, images=passed_on)
        if as_json:
            continue
        metrics = read_metrics(out / name / "metrics.json")
        click.echo(f"\n{metrics['title']} ({metrics['paper']}, {preset}, {metrics['seconds']:.1f} s)")
        for table in experiments.read(metrics).tables:
            print_table(table)
    page = write_page(out, experiments.read)
    if as_json:
        print_json({"page": str(page), "metrics": {name: str(out / name / "metrics.json") for name in names}})
    else:
        click.echo(f"\nThe page with all figures: {page}")
