"""The commands of the experiments, the benchmarks and the recipes; `lmd.cli` imports them when they are used."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lmd.cli.common import JSON, PRESET, SEED, Integer, Number, Ordered, Table, print_json, print_table
from lmd.core.extras import MissingError
from lmd.errors import FileError, InputError, LmdError


@click.command("list")
@JSON
def list_command(as_json: bool) -> None:
    """Show the experiments, the tasks and the trained solvers.

    \b
    Example
      lmd list --json
    """
    from lmd import zoo
    from lmd.imaging.files import TASKS
    from lmd.reproduction import experiments, recipes, tasks

    tried = [experiments.get(name) for name in experiments.names()]
    found: dict[str, list[dict[str, Any]]] = {
        "experiments": [{"name": e.name, "title": e.title, "paper": e.paper} for e in tried],
        "tasks": [
            {
                "name": task.name,
                "title": task.title,
                "bench": [*([task.name] if task.contest else []), *task.models],
                "solve": task.name in TASKS,
            }
            for task in tasks.every()
        ],
        "solvers": [
            {"name": name, "title": recipes.recipe(name).title, "shipped": name in zoo.names()}
            for name in recipes.names()
        ],
    }
    if as_json:
        print_json(found)
        return
    lines = tuple((e["name"], e["paper"], e["title"]) for e in found["experiments"])
    print_table(Table("Experiments: lmd reproduce NAME", ("name", "paper", "what it shows"), lines))
    several = [t for t in found["tasks"] if t["bench"] not in ([], [t["name"]])]
    shown = tuple(
        (
            t["name"],
            "see below" if t in several else "yes" if t["bench"] else "no",
            "yes" if t["solve"] else "no",
            t["title"],
        )
        for t in found["tasks"]
    )
    columns = ("name", "lmd bench", "lmd solve", "what it is")
    print_table(Table("Tasks", columns, shown))
    for task in several:
        click.echo(f"For {task['name']} lmd bench takes: {', '.join(task['bench'])}\n")
    lines = tuple((s["name"], "yes" if s["shipped"] else "no", s["title"]) for s in found["solvers"])
    print_table(Table("Solvers: lmd.zoo.load(NAME), lmd train NAME", ("name", "ships", "what it is"), lines))


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
    torch.set_num_threads(1)  # for small problems, several threads only wait for each other on a busy machine
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
    name: str, preset: str, out: str, seed: int, retrain: bool, images: str | None, data_dir: str | None, as_json: bool
) -> None:
    """Run the experiment NAME (or all) and write its numbers and figures.

    \b
    Writes OUT/NAME/metrics.json, OUT/NAME/figures/*.png, OUT/NAME/run.log.jsonl and OUT/index.html.
    With `all`, --images is for experiments with test images. A failed experiment is skipped and named on the page.
    Examples
      lmd reproduce simplex --preset standard --out results
      lmd reproduce denoise --preset standard --images my-photographs
      lmd reproduce all
    """
    from lmd.core.checks import check_choice
    from lmd.core.files import writable_folder
    from lmd.reproduction import experiments
    from lmd.reproduction.datasets import read_images
    from lmd.reproduction.datasets.files import named_folder

    chosen = experiments.names()
    if name != "all":
        chosen = [check_choice("experiment", name, (*experiments.names(), "all"))]
    if images is not None:
        read_images(images)  # report bad images before anything is run
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
    from lmd.reproduction.page import write_page

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
    """Run experiments one after the other, so that times are not disturbed; print their tables and write the page.

    If one of several experiments fails, the others are run, the page names the missing one, and the exit code is 1.
    """
    import torch

    from lmd.reproduction import experiments
    from lmd.reproduction.experiments.base import reproduce as reproduce_experiment
    from lmd.reproduction.page import write_page

    if len(names) > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # most problems are too small for several threads, and our results use one
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
    from lmd.reproduction.page import read_metrics

    metrics = read_metrics(path)
    click.echo(f"\n{metrics['title']} ({metrics['paper']}, {metrics['preset']}, {metrics['seconds']:.1f} s)")
    for table in experiments.read(metrics).tables:
        print_table(table)


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
    from lmd.reproduction import recipes

    folder = Path(out) if out else Path("runs") / name
    recipes.train_recipe(name, preset, out=folder, seed=seed, resume=resume)
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
    from lmd.reproduction.experiments.check import import_family
    from lmd.reproduction.experiments.tour import card_rows, write_learned
    from lmd.training import learn

    folder = Path(out) if out else Path("runs") / family.rpartition(":")[2]
    found = learn(
        import_family(family),
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
    from lmd.reproduction.bench.report import bench_tables, write

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
    """Return the settings of the benchmark that were given on the command line."""
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
        from lmd.reproduction.datasets import read_images

        given["images"] = Path(given["images"])
        read_images(given["images"])  # report bad images before anything is run
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
    The exit code is 1 if a promise is broken, including one that `lmd learn` made about the class.
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


@click.group(cls=Ordered)
def data() -> None:
    """Show the datasets, or fetch one.

    \b
    Examples
      lmd data list
      lmd data fetch mnist
    """


@data.command("list")
@JSON
def data_list(as_json: bool) -> None:
    """Show the datasets, where they come from and whether they are here.

    \b
    Example
      lmd data list --json
    """
    from lmd.reproduction.datasets import datasets

    found = datasets()
    if as_json:
        keys = ("name", "title", "source", "present")
        print_json([{key: getattr(dataset, key) for key in keys} for dataset in found])
        return
    lines = tuple((d.name, "yes" if d.present else "no", d.title, d.source) for d in found)
    print_table(Table("", ("name", "here", "what it is", "where it comes from"), lines))


@data.command("fetch")
@click.argument("name")
def data_fetch(name: str) -> None:
    """Download the dataset NAME, check it, and keep it in the cache.

    \b
    Example
      lmd data fetch mnist
    """
    from lmd.reproduction.datasets import fetch

    folder = fetch(name)
    click.echo(f"{name}: {'ships with a dependency, nothing to fetch' if folder is None else folder}")
