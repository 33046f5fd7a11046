"""The command line: a thin layer that parses, calls and prints."""

from __future__ import annotations

import atexit
import functools
import gc
import io
import json
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lmd import __version__
from lmd.errors import InputError, LmdError

if TYPE_CHECKING:
    from lmd.pictures.files import Done
    from lmd.report.tables import Table

PRESETS = ("quick", "standard", "paper")

_PRESET = click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="quick",
    show_default=True,
    help="quick: seconds to a few minutes; standard: up to an hour or two on two cores; paper: the published sizes.",
)
MOST_ITERATIONS = 1_000_000
MOST_SEED = 2**32 - 1
_SEED = click.option(
    "--seed", type=click.IntRange(0, MOST_SEED), default=0, show_default="0", help="Seed of all randomness."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


class _Group(click.Group):
    """Lists the commands in the order they are defined, which is the order a newcomer meets them in."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lmd")
def cli() -> None:
    """Learned mirror descent: fast, certified solvers for classes of convex problems.

    \b
    Start with
      lmd demo                                        a tour, in under two minutes
      lmd list                                        experiments, tasks, trained solvers
      lmd reproduce simplex --preset standard         Figure 1 of the paper
    """


@cli.command("list")
@_JSON
def list_command(as_json: bool) -> None:
    """Show the experiments, the tasks and the trained solvers.

    \b
    Example
      lmd list --json
    """
    from lmd import experiments, tasks, zoo

    tried = [experiments.get(name) for name in experiments.names()]
    found: dict[str, list[dict[str, Any]]] = {
        "experiments": [{"name": e.name, "title": e.title, "paper": e.paper} for e in tried],
        "tasks": [
            {
                "name": task.name,
                "title": task.title,
                "bench": task.contest is not None,
                "solve": task.picture is not None,
            }
            for task in tasks.every()
        ],
        "solvers": [
            {"name": name, "title": zoo.recipe(name).title, "shipped": zoo.shipped(name)} for name in zoo.names()
        ],
    }
    if as_json:
        _print_json(found)
        return
    from lmd.report.tables import Table

    lines = tuple((e["name"], e["paper"], e["title"]) for e in found["experiments"])
    _print_table(Table("Experiments: lmd reproduce NAME", ("name", "paper", "what it shows"), lines))
    lines = tuple(
        (t["name"], *("yes" if t[key] else "no" for key in ("bench", "solve")), t["title"]) for t in found["tasks"]
    )
    columns = ("name", "lmd bench", "lmd solve", "what it is")
    _print_table(Table("Tasks", columns, lines))
    lines = tuple((s["name"], "yes" if s["shipped"] else "no", s["title"]) for s in found["solvers"])
    _print_table(Table("Solvers: lmd.zoo.load(NAME), lmd train NAME", ("name", "ships", "what it is"), lines))


@cli.command()
@_JSON
def info(as_json: bool) -> None:
    """Show versions, the compiled code in use, threads, devices, extras and the cache.

    \b
    Example
      lmd info --json
    """
    from lmd.info import info, told

    found = info()
    if as_json:
        _print_json(found)
    else:
        click.echo("\n".join(told(found)))


@cli.command()
@click.option("--out", default="demo", show_default=True, help="Folder for the page and the results.")
@_SEED
@_JSON
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


@cli.command()
@click.argument("name")
@_PRESET
@click.option("--out", default="results", show_default=True, help="Results go to OUT/NAME.")
@_SEED
@click.option("--retrain", is_flag=True, help="Train anew where a trained solver ships.")
@click.option("--images", help="A folder of images, or an .npz with `images`, in place of the test images.")
@click.option("--data-dir", help="A folder with MNIST or STL-10 in it, in place of the one LMD_DATA names.")
@_JSON
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


@cli.command()
@click.argument("name")
@_PRESET
@click.option("--out", help="Folder of the run.  [default: runs/NAME]")
@_SEED
@click.option("--resume", is_flag=True, help="Go on with the run in OUT.")
def train(name: str, preset: str, out: str | None, seed: int, resume: bool) -> None:
    """Train the solver NAME from its recipe; `lmd list` shows the names.

    \b
    The folder can be given to lmd.zoo.load. A run that was killed goes on with --resume.
    Example
      lmd train least-squares-quadratic-10 --preset standard --out runs/mine
    """
    from lmd import zoo

    folder = Path(out) if out else Path("runs") / zoo.current_name(name)
    zoo.train_recipe(name, preset, out=folder, seed=seed, resume=resume)
    click.echo(f"trained solver: {folder}")


@cli.command()
@click.argument("family", metavar="MODULE:FAMILY")
@click.option("--minutes", type=float, default=10.0, show_default=True, help="How long to learn.")
@click.option("--target", type=float, default=1e-3, show_default=True, help="The relative gap to get to.")
@click.option("--out", help="Folder of the run.  [default: runs/FAMILY]")
@_SEED
@click.option("--resume", is_flag=True, help="Go on with the run in OUT.")
@_JSON
def learn(family: str, minutes: float, target: float, out: str | None, seed: int, resume: bool, as_json: bool) -> None:
    """Learn the fastest solver for a class of your own: FAMILY is a family, or a class of one, in a module.

    \b
    The folder can be given to lmd.solvers.load. A run that was killed goes on with --resume.
    Example
      lmd learn examples.own_problem:HuberFamily --minutes 2 --out runs/mine
    """
    from rich.console import Console

    from lmd.learning import card_rows, family_named, learn
    from lmd.report.tables import Table

    folder = Path(out) if out else Path("runs") / family.rpartition(":")[2]
    console = Console(stderr=True)
    found = learn(
        family_named(family),
        minutes,
        folder,
        target,
        seed=seed,
        resume=resume,
        progress=lambda line: console.print(line),
    )
    if as_json:
        _print_json(found.card)
    else:
        winner = f"{found.card['winner']} it is: {found.card['batch']} instances together, and one alone"
        _print_table(Table(winner, *card_rows(found.card)))
        click.echo(f"{found.card['promised']}\nlearned solver: {folder}")


class _Pictures(_Group):
    """A command for each task that takes pictures, made when it is asked for: the tasks are long to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from lmd import tasks

        return [task.name for task in tasks.every() if task.picture is not None]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        from lmd import tasks

        picture = tasks.get(name).picture if name in self.list_commands(ctx) else None
        if picture is None:
            return None
        sample = _EXTRAS.get(picture.extra)
        beside = f" --{picture.extra} {(sample.metavar or '').lower()}" if sample else ""
        help_text = f"{picture.about}\n\n{_PICTURES.format(name=name, extra=beside)}"
        options = [*_PICTURE_OPTIONS, *([sample] if sample else []), *(_FORM_OPTIONS if picture.forms else [])]
        return click.Command(name, params=options, help=help_text, callback=functools.partial(_solve, name))


_PICTURES = """\b
IN is a picture, several, a folder, or a pattern such as '*.png'; a TIFF of several pages or an array
in .npy may be a volume. OUT ends in .png, .jpg, .tif or .npy, or is a folder. Transparency, 16 bits
and the colour profile are kept where OUT can hold them; a turned photograph is set upright.
Examples
  lmd solve {name} in.jpg out.png{extra}
  lmd solve {name} in.tif out.tif{extra} --weight 0.1 --tolerance 1e-5 --json
  lmd solve {name} photographs results{extra} --workers 2
"""


class _Weight(click.ParamType[Any]):
    """A number, or auto."""

    name = "number|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        try:
            return "auto" if value == "auto" else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor auto.", param, ctx)


_EXTRAS = {
    "mask": click.Option(
        ["--mask", "extra"],
        required=True,
        metavar="MASK.PNG",
        help="Black and white, as large as IN: white is kept. Or a folder of masks with the names of the pictures.",
    ),
    "kernel": click.Option(
        ["--kernel", "extra"],
        required=True,
        metavar="GAUSSIAN:1.5",
        help="What blurred it: gaussian:WIDTH, motion:LENGTH[:DEGREES], or a file with an image of it.",
    ),
}
_PICTURE_OPTIONS: list[click.Parameter] = [
    click.Argument(["images"], metavar="IN...", nargs=-1, required=True),
    click.Argument(["out"], metavar="OUT"),
    click.Option(["--solver"], help="fgp, pdhg, a name that `lmd list` shows, or a folder.  [default: the best]"),
    click.Option(
        ["--iterations"],
        type=click.IntRange(1, MOST_ITERATIONS),
        help="Stop after so many.  [default: what the solver is made for]",
    ),
    click.Option(["--weight"], type=_Weight(), help="Larger is smoother.  [default: auto]"),
    click.Option(["--tolerance"], type=float, help="Stop when proven to be so near to the minimum.  [default: 1e-3]"),
    click.Option(["--isotropic"], is_flag=True, help="Treat all directions alike, not along rows and columns."),
    click.Option(["--workers"], type=click.IntRange(1, 1024), help="So many files at a time.  [default: all cores]"),
    click.Option(["--overwrite"], is_flag=True, help="Write over what is in OUT already; never over IN."),
    click.Option(["--plot"], metavar="FILE", help="Also draw how the automatic weight was chosen."),
    click.Option(["--json", "as_json"], is_flag=True, help="Print a line of JSON for each file."),
]


_FORM_OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--data"],
        type=click.Choice(["squares", "poisson", "absolute"]),
        help="How the picture is held to: poisson for counts, absolute for impulses.  [default: squares]",
    ),
    click.Option(["--order"], type=click.IntRange(1, 2), help="2: slopes cost nothing, no staircases.  [default: 1]"),
    click.Option(["--coupled"], is_flag=True, help="Edges of all colours in one place."),
    click.Option(
        ["--huber"], type=float, help="Squares for gradients up to this; colours are from 0 to 1.  [default: 0]"
    ),
]


@cli.group(cls=_Pictures)
def solve() -> None:
    """Solve for pictures: PNG, JPEG, TIFF or .npy of any size, grey or colour, images or volumes.

    \b
    Examples
      lmd solve denoise noisy.jpg clean.png
      lmd solve denoise photographs results
      lmd solve inpaint scratched.png whole.png --mask scratches.png
    """


def _solve(
    task: str,
    images: tuple[str, ...],
    out: str,
    as_json: bool,
    extra: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    plot: str | None = None,
    **settings: Any,
) -> int:
    from lmd.data.memory import keep_freed_memory
    from lmd.data.progress import LateBar
    from lmd.files import writable_name
    from lmd.pictures import PictureSolver
    from lmd.pictures.files import find_jobs, solve_many, solve_one

    keep_freed_memory()
    path = None if plot is None else writable_name("plot", plot)
    solver = PictureSolver(task, **{name: value for name, value in settings.items() if value is not None})
    if path is not None and solver.weight is not None:
        raise InputError("plot", plot, "no --weight, as it shows how one is chosen")
    jobs = find_jobs(images, out, overwrite)
    done: list[Done] = []
    failed: list[Done] = []
    with LateBar(solver.model.doing, total=len(jobs)) as bar:
        if len(jobs) == 1:
            found = iter([solve_one(solver, jobs[0], extra, overwrite, bar.update)])
        else:
            found = solve_many(solver, jobs, extra, overwrite, workers)
        for each in found:
            (done if each.summary else failed).append(each)
            if len(jobs) > 1:
                bar.update(1)
            if as_json:
                click.echo(json.dumps(each.as_json()))
            elif each.summary:
                click.echo(each.line() if len(jobs) > 1 else each.block())
    if path is not None:
        from lmd.report.choices import draw_choices

        draw_choices(path, [each.summary for each in done if each.summary])
    for each in failed:
        click.echo(f"lmd: {each.line()}", err=True)
    if failed:
        click.echo(f"lmd: {len(failed)} of {len(jobs)} failed", err=True)
    return 1 if failed else 0


@cli.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--images", help="A folder of images, or an .npz with `images`, in place of the test images.")
@click.option("--json", "json_file", metavar="FILE", help="Write the numbers to FILE.")
@click.option("--out", metavar="DIR", help="Write DIR/bench/metrics.json and figures.")
@click.option("--methods", metavar="NAME,...", help="Only these methods and peers.")
@click.option("--noise", metavar="PERCENT,...", help="Only these noise levels.")
@click.option("--count", type=click.IntRange(1, 100_000), help="How many test images.  [default: 20]")
@click.option("--repeats", type=click.IntRange(1, 1000), help="How often each time is measured.  [default: 7]")
@click.option("--sizes", metavar="SIDE,...", help="Also denoise one image at these sizes, such as 32,256,2048.")
@click.option("--quick", is_flag=True, help="A few small images: seconds.")
@_SEED
def bench(names: tuple[str, ...], json_file: str | None, out: str | None, quick: bool, **choices: Any) -> None:
    """Compare every solver and every peer on the tasks NAME (all by default), per iteration and per second.

    \b
    `lmd list` shows the tasks.
    Examples
      lmd bench denoise --noise 5 --json bench.json
      lmd bench --images my-photographs --out results
    """
    from rich.console import Console

    from lmd.experiments.bench import Plan, run_bench
    from lmd.experiments.bench.report import write
    from lmd.experiments.bench.tables import bench_tables
    from lmd.files import writable_folder, writable_name

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
        _print_table(table)
    for fact, text in found.facts.items():
        click.echo(f"{fact}: {text}")
    for skipped in found.skipped:
        click.echo(f"skipped: {skipped}")


def _bench_choices(names: tuple[str, ...], choices: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a bench's plan that were given on the command line."""
    given = {key: value for key, value in choices.items() if value is not None}
    for key in ("noise", "sizes"):
        if key in given:
            try:
                given[key] = tuple(int(word) for word in given[key].split(","))
            except ValueError:
                raise InputError(key, repr(given[key]), "whole numbers with commas between them") from None
    if "methods" in given:
        given["methods"] = tuple(given["methods"].split(","))
    if "images" in given:
        from lmd.data import read_images

        given["images"] = Path(given["images"])
        read_images(given["images"])  # what is wrong with them is said before anything is run
    return {"problems": names, **given} if names else given


@cli.command("import")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--out", required=True, help="Folder for the solver.")
def import_command(checkpoint: Path, out: str) -> None:
    """Turn a published CHECKPOINT into a solver of ours.

    \b
    The folder can be given to lmd.zoo.load.
    Example
      lmd import inpainting_780 --out solvers/inpainting
    """
    from lmd.files import staged
    from lmd.solvers import save
    from lmd.zoo.published import import_checkpoint

    solver = import_checkpoint(checkpoint)
    with staged("out", Path(out)) as folder:
        save(solver, folder, imported_from=checkpoint.name)
    click.echo(
        f"solver: {Path(out)} ({sum(p.numel() for p in solver.parameters())} parameters, horizon {solver.horizon})"
    )


@cli.command()
@click.argument("solver")
@click.option("--out", default="check", show_default=True, help="Folder for check.json and check.png.")
@click.option(
    "--iterations", type=click.IntRange(1, 100_000), default=1000, show_default="1000", help="How far to run it."
)
@click.option("--family", metavar="NAME", help="What NAME is trained on, in place of what SOLVER was.")
@_SEED
def check(solver: str, out: str, iterations: int, family: str | None, seed: int) -> None:
    """Diagnose SOLVER, a name or a folder: does it keep its promises on its family and on harder problems?

    \b
    Exit code 1 where a promise is broken. What `lmd import` wrote does not know its family; say it.
    Examples
      lmd check least-squares-quadratic-10 --out check
      lmd check solvers/inpainting --family inpaint-pair-10
    """
    from lmd.experiments.check import check as check_solver
    from lmd.experiments.check import check_table

    found = check_solver(solver, out, family=family, iterations=iterations, seed=seed)
    _print_table(check_table(found))
    click.echo(f"figure: {Path(out) / 'check.png'}")
    if found.broken:
        sys.exit(1)


@cli.group(cls=_Group)
def data() -> None:
    """Show the datasets, or fetch one.

    \b
    Examples
      lmd data list
      lmd data fetch mnist
    """


@data.command("list")
@_JSON
def data_list(as_json: bool) -> None:
    """Show the datasets, where they come from and whether they are here.

    \b
    Example
      lmd data list --json
    """
    from lmd.data import datasets
    from lmd.report.tables import Table

    found = datasets()
    if as_json:
        keys = ("name", "title", "source", "present")
        _print_json([{key: getattr(dataset, key) for key in keys} for dataset in found])
        return
    lines = tuple((d.name, "yes" if d.present else "no", d.title, d.source) for d in found)
    _print_table(Table("", ("name", "here", "what it is", "where it comes from"), lines))


@data.command("fetch")
@click.argument("name")
def data_fetch(name: str) -> None:
    """Download the dataset NAME, check it, and keep it in the cache.

    \b
    Example
      lmd data fetch mnist
    """
    from lmd.data import fetch

    folder = fetch(name)
    click.echo(f"{name}: {'ships with a dependency, nothing to fetch' if folder is None else folder}")


@cli.command()
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
            _print_table(table)
    page = write_page(out, experiments.read)
    if as_json:
        _print_json({"page": str(page), "metrics": {name: str(out / name / "metrics.json") for name in names}})
    else:
        click.echo(f"\nThe page with all figures: {page}")


def _print_table(table: Table) -> None:
    from rich.console import Console

    from lmd.report.tables import to_rich

    console = Console(width=None if sys.stdout.isatty() else 110)
    console.print(to_rich(table))


def _print_json(data: object) -> None:
    click.echo(json.dumps(data, indent=1))


def program() -> None:
    """What the command `lmd` is: `main`, and next to no collecting of garbage, which imports and the end do not need.

    That is worth half a second of two.
    """
    gc.set_threshold(100_000)
    atexit.register(gc.freeze)
    main()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: exit code 0 on success, 2 on bad input, 1 when something else went wrong."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file may be no text
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            given = None if arguments is None else list(arguments)
            answer = cli.main(args=given, prog_name="lmd", standalone_mode=False)
        sys.exit(answer if isinstance(answer, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        sys.exit(0)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), 2)
    except InputError as error:
        _fail(str(error), 2)
    except LmdError as error:
        _fail(str(error), 1)
    except ModuleNotFoundError as error:
        from lmd.extras import missing

        _fail(missing((error.name or "a module").split(".")[0]), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:  # what the system refuses: a name too long for it, a disk that is full
        place = "file" if error.filename is None else f"file: got {error.filename}"
        _fail(f"{place} ({error.strerror or error})", 2)
    except Exception as error:
        if os.environ.get("LMD_DEBUG"):
            raise
        _fail(
            f"internal error ({type(error).__name__}: {error}); set LMD_DEBUG=1 to see where, and please report it", 1
        )


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"lmd: warning: {' '.join(str(message).split())}", err=True)


def _fail(message: str, code: int) -> None:
    click.echo(f"lmd: {' '.join(message.split())}", err=True)
    sys.exit(code)
