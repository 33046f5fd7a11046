"""The command `lmd solve TASK IN OUT` for pictures."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import click

from lmd.cli.common import MAX_ITERATIONS, Integer, Number, Ordered
from lmd.errors import InputError

if TYPE_CHECKING:
    from lmd.imaging.files import FileResult


PLOTS = (".png", ".jpg", ".pdf", ".svg")  # accepted file endings of plots

_PICTURES = """\b
IN is one or more pictures, a folder, or a pattern such as '*.png'. A TIFF of several pages or a
.npy array may be a volume. OUT is a folder or ends in .png, .jpg, .tif or .npy. Transparency,
16 bits and the colour profile are kept if OUT can hold them. Photographs are turned upright.
Examples
  lmd solve {name} in.jpg out.png{extra}
  lmd solve {name} in.tif out.tif{extra} --weight 0.1 --tolerance 1e-5 --json
  lmd solve {name} photographs results{extra} --workers 2
"""


class _Weight(click.ParamType[Any]):
    """A number or "auto"."""

    name = "number|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        try:
            return "auto" if value == "auto" else float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor auto.", param, ctx)


def _option(name: str, kind: Any, text: str, **settings: Any) -> click.Option:
    return click.Option(name.split(), type=kind, help=text, **settings)


_COUNT, _MISFITS = Integer(1, MAX_ITERATIONS), click.Choice(["squares", "poisson", "absolute"])
_TOLERANCE = "Stop when the relative gap to the minimum is proven to be below this.  [default: 1e-3]"
_ISOTROPIC = "Sum the lengths of gradients instead of absolute differences along rows and columns."
_ORDER = "2 for total generalised variation, which keeps slopes free of staircases.  [default: 1]"
_COUPLED = "Couple the colours, so that they share their edges.  [default: coupled, for colours]"
_PICTURE_OPTIONS: list[click.Parameter] = [
    click.Argument(["paths"], metavar="IN... OUT", nargs=-1),
    _option("--solver", str, "fgp, pdhg, a solver from `lmd list`, or a folder.  [default: chosen by lmd]"),
    _option("--iterations", _COUNT, "Maximum number of iterations.  [default: that of the solver]"),
    _option("--weight", _Weight(), "Weight of the regulariser; larger is smoother.  [default: auto]"),
    _option("--tolerance", Number(), _TOLERANCE),
    _option("--isotropic", bool, _ISOTROPIC, is_flag=True),
    _option("--workers", Integer(1, 1024), "Number of files processed in parallel.  [default: all cores]"),
    _option("--overwrite", bool, "Replace files that exist; IN is never replaced.", is_flag=True),
    _option("--plot", str, "Plot how the automatic weight was chosen to FILE.", metavar="FILE"),
    _option("--json as_json", bool, "Print a line of JSON for each file.", is_flag=True),
]
_MODEL_OPTIONS: list[click.Parameter] = [
    _option("--data", _MISFITS, "The misfit: squares, poisson for counts, absolute for impulses.  [default: squares]"),
    _option("--order", Integer(1, 2), _ORDER),
    _option("--coupled/--no-coupled", bool, _COUPLED, default=None),
    _option("--huber", Number(), "Penalise gradients up to this quadratically; colours are from 0 to 1.  [default: 0]"),
]


def _solve(
    task: str,
    paths: tuple[str, ...],
    as_json: bool,
    extra: str | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    plot: str | None = None,
    **settings: Any,
) -> int:
    from lmd.core.files import writable_name
    from lmd.core.memory import keep_freed_memory
    from lmd.core.progress import ProgressBar
    from lmd.imaging.files import TASKS, PictureSolver, find_jobs, plot_choices, solve_many, solve_one

    if len(paths) < 2:
        given = f"IN is {paths[0]}" if paths else "neither IN nor OUT is given"
        raise click.UsageError(f"Missing argument 'OUT': {given}; name the file or folder to write to as the last one.")
    *images, out = paths
    keep_freed_memory()
    path = None if plot is None else writable_name("plot", plot)
    solver = PictureSolver(task, **{name: value for name, value in settings.items() if value is not None})
    if path is not None and path.suffix.lower() not in PLOTS:
        raise InputError("plot", plot, f"a name that ends in {', '.join(PLOTS)}")
    if path is not None and solver.weight != "auto":
        raise InputError("plot", plot, "no --weight, as it shows how one is chosen")
    jobs = find_jobs(images, out, overwrite)
    results: list[FileResult] = []
    is_one = len(jobs) == 1
    with ProgressBar(TASKS[task].doing, total=len(jobs)) as bar:
        one = [solve_one(solver, jobs[0], extra, overwrite)] if is_one else []
        for result in one or solve_many(solver, jobs, extra, overwrite, workers):
            results.append(result)
            bar.update(1)
            with bar.hidden():
                if as_json:
                    click.echo(json.dumps(result.as_json()))
                elif result.summary:
                    click.echo(result if is_one else result.line)
    if path is not None:
        plot_choices(path, [result.summary for result in results if result.summary])
    failed = [result for result in results if not result.summary]
    for result in failed:
        click.echo(f"lmd: {result.line}", err=True)
    if failed:
        click.echo(f"lmd: {len(failed)} of {len(jobs)} failed", err=True)
    return 1 if failed else 0


@click.group(cls=Ordered)
def solve() -> None:
    """Denoise, inpaint or deblur pictures: PNG, JPEG, TIFF or .npy, grey or colour, images or volumes.

    \b
    Examples
      lmd solve denoise noisy.jpg clean.png
      lmd solve denoise photographs results
      lmd solve inpaint scratched.png whole.png --mask scratches.png
    """


def _add(task: str, about: str, example: str, *options: click.Parameter) -> None:
    """Add the command of a task to `solve`; `example` adds the options of the task to the examples."""
    text = f"{about}\n\n{_PICTURES.format(name=task, extra=example)}"
    params = [*_PICTURE_OPTIONS, *options]
    solve.add_command(click.Command(task, params=params, help=text, callback=functools.partial(_solve, task)))


_add(
    "denoise",
    "Remove the noise from the picture IN and write it to OUT.\n\n\b\nMinimises ||x - y||^2 + weight TV(x) for the "
    "picture y with\ncolours from 0 to 1; options choose other models.",
    "",
    *_MODEL_OPTIONS,
)
_MASK = (
    "A black-and-white picture of the size of IN: white pixels are kept, black ones are lost. Or a folder of masks "
    "with the names of the pictures."
)
_add(
    "inpaint",
    "Fill in the lost pixels of the picture IN and write it to OUT.\n\n\b\nMinimises ||Z(x - y)||^2 + weight "
    "TV(x) for the picture y with\ncolours from 0 to 1 and the mask Z. Pixels are kept where the mask is white "
    "(lighter than\nhalf) and lost where it is black.",
    " --mask mask.png",
    _option("--mask extra", str, _MASK, required=True, metavar="MASK.PNG"),
)
_KERNEL = "The blur: gaussian:WIDTH, motion:LENGTH[:DEGREES], or a file with an image of the kernel."
_add(
    "deblur",
    "Remove the blur of the picture IN and write it to OUT.\n\n\b\nMinimises ||k * x - y||^2 + weight TV(x) for the "
    "picture y and the\nkernel k. The colours of x and y are from 0 to 1.",
    " --kernel gaussian:1.5",
    _option("--kernel extra", str, _KERNEL, required=True, metavar="GAUSSIAN:1.5"),
)
