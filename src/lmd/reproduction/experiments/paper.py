"""The paper, number by number: each figure and table, what it claims, and what the experiments here find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmd.cli.common import Table
from lmd.core.files import write_text
from lmd.errors import FileError
from lmd.reproduction.experiments.base import reached
from lmd.reproduction.page import find_metrics, read_metrics
from lmd.reproduction.tables import Row

Rows = Sequence[Row]


@dataclass(frozen=True)
class Claim:
    """One figure or table of the paper."""

    place: str
    experiment: str
    says: str  # what it claims, in our words
    paper: str  # the paper's numbers, where it prints any
    ours: Callable[[Rows], str]
    differs: str = "nothing that matters"


def _at(metric: str, iteration: int, methods: Mapping[str, str], **settings: Any) -> Callable[[Rows], str]:
    def say(rows: Rows) -> str:
        there = {row["method"] for row in rows}  # files that were written before a method came have none of it
        shown = {name: label for name, label in methods.items() if name in there}
        found = [f"{label} {reached(rows, name, metric, iteration, **settings)}" for name, label in shown.items()]
        return f"{metric.replace('_', ' ')} at {iteration}: " + ", ".join(found)

    return say


def _both(*parts: Callable[[Rows], str]) -> Callable[[Rows], str]:
    return lambda rows: "; ".join(part(rows) for part in parts)


_LEARNED = {"lmd-adaptive": "adaptive LMD", "lmd": "LMD", "adam": "Adam", "gd": "GD"}
_WARM = {"warm-start": "L-BFGS from the mean of training optima"}
_CURVES = "curves alone"

CLAIMS = (
    Claim(
        "Figure 1",
        "simplex",
        "Entropic mirror descent converges linearly on the KL divergence, far ahead of gradient descent, and loses to "
        "it on the squared distance.",
        _CURVES,
        _both(
            *(
                _at("loss", 50, {"md": f"mirror descent ({name})", "gd": "GD"}, objective=objective)
                for objective, name in (("kl", "KL"), ("least-squares", "squares"))
            )
        ),
    ),
    Claim(
        "Figure 2",
        "least-squares",
        "A learned quadratic potential makes convergence linear, learned steps reach machine precision at once, and "
        "the learned matrix is nearly proportional to W'W.",
        "off-diagonal over diagonal 0.55 / 0.69 = 0.80",
        _both(
            _at("matrix_ratio", 10, {"lmd-quadratic": "learned", "md": "W'W"}),
            _at("loss", 10, {"lmd-quadratic-adaptive": "adaptive", "lmd-quadratic": "fixed steps", "gd": "GD"}),
        ),
    ),
    Claim(
        "Figure 3",
        "least-squares",
        "With a one-layer potential the dual iterates have to be clipped, which shows as two lines of iterates and "
        "slows some step-sizes down.",
        _CURVES,
        _at("loss", 10, {"lmd-one-layer-adaptive": "adaptive", "lmd-one-layer": "fixed steps", "gd": "GD"}),
        "the paper's formula for the gradient of this potential drops a factor, so that its map is no mirror map "
        "unless A is the identity; ours is the gradient",
    ),
    Claim(
        "Figure 4",
        "svm-closed-form",
        "On SVMs quadratic LMD is ahead of GD and Adam; few eigenvalues of A are large.",
        "3 of 51 eigenvalues above 1, the others below 0.5",
        _both(
            _at(
                "loss", 10, {"lmd-quadratic-adaptive": "adaptive", "lmd-quadratic": "fixed", "adam": "Adam", "gd": "GD"}
            ),
            lambda rows: (
                f"{reached(rows, 'lmd-quadratic', 'eigenvalues_above', 10, level=1.0)} eigenvalues above 1 and "
                f"{reached(rows, 'lmd-quadratic', 'eigenvalues_above', 10, level=0.5)} above 0.5"
            ),
        ),
        "the features are of a network of our own, so that the eigenvalues are others",
    ),
    Claim(
        "Figure 5",
        "svm-closed-form",
        "With a one-layer potential LMD is ahead for small step-sizes, and clipping spoils the larger ones.",
        _CURVES,
        _at(
            "loss",
            10,
            {
                "lmd-one-layer-adaptive": "adaptive",
                "lmd-one-layer-published-adaptive": "by the printed formula",
                "gd": "GD",
            },
        ),
        "the gradient that the printed formula drops a factor of; both are there",
    ),
    Claim(
        "Figure 6",
        "svm",
        "A learned pair of networks is ahead of GD and Adam in hinge loss and accuracy.",
        _CURVES,
        _both(
            _at("relative_gap", 10, {**_LEARNED, "lmd-published-adaptive": "as published"}),
            _at("relative_gap", 10, {**_WARM, "interior-learned": "interior-point steps from a learned start"}),
        ),
        "the step is corrected for the drift of the learned inverse; the paper's is beside it, and so are what a "
        "practitioner would do and learned steps of second order",
    ),
    Claim(
        "Figure 7",
        "linear-classifier",
        "The same for a linear classifier, with a spike after ten iterations at four times the step.",
        _CURVES,
        _both(
            _at("loss", 10, _LEARNED),
            _at("loss", 10, {**_WARM, "newton-learned": "Newton's steps from a learned start"}),
        ),
        "no spike: the step is corrected for the drift",
    ),
    Claim(
        "Figure 8",
        "denoise",
        "LMD is ahead of GD and Adam at first, and may stop short of the minimum.",
        _CURVES,
        _both(_at("relative_gap", 10, _LEARNED), _at("relative_gap", 10, {"pdhg": "PDHG", "fgp": "FGP"})),
        "PDHG and FGP, which the paper does not show, are beside them",
    ),
    Claim(
        "Figure 9",
        "denoise",
        "Three iterations of adaptive LMD look like ten of Adam.",
        "pictures",
        _both(_at("psnr", 3, {"lmd-adaptive": "adaptive LMD"}), _at("psnr", 10, {"adam": "Adam"})),
    ),
    Claim(
        "Figure 10",
        "inpaint",
        "Adaptive LMD converges best; small steps are unstable, as the inverse is approximate.",
        _CURVES,
        _both(_at("relative_gap", 10, _LEARNED), _at("relative_gap", 10, {"pdhg": "PDHG"})),
        "small steps are stable here: the step is corrected for the drift",
    ),
    Claim(
        "Figure 11",
        "inpaint",
        "Ten iterations of adaptive LMD look like twenty of Adam.",
        "pictures",
        _both(_at("psnr", 10, {"lmd-adaptive": "adaptive LMD"}), _at("psnr", 20, {"adam": "Adam"})),
    ),
    Claim(
        "Figures 12 and 13",
        "consistency",
        "As the weight of the inconsistency grows, the inconsistency falls and the loss rises.",
        _CURVES,
        lambda rows: "; ".join(_grown(rows, problem) for problem in ("svm", "inpaint")),
        "fewer updates, with as many leaps of the weight",
    ),
    Claim(
        "Figure 14",
        "ablation",
        "Two training iterations are too few, without consistency the loss rises again after a fast start, and learned "
        "steps alone are far behind.",
        _CURVES,
        _at(
            "loss",
            20,
            {
                "lmd-adaptive": "adaptive LMD",
                "lmd-two-iterations": "N = 2",
                "lmd-no-consistency": "s = 0",
                "lgd": "learned GD",
            },
        ),
    ),
)


def _grown(rows: Rows, problem: str) -> str:
    """Inconsistency and loss of held-out instances at the first and the last epoch."""
    said = []
    for metric in ("held_out_inconsistency", "held_out_value"):
        points = [
            (row["iteration"], row["value"]) for row in rows if (row["metric"], row.get("problem")) == (metric, problem)
        ]
        if points:
            first, last = min(points)[1], max(points)[1]
            said.append(f"{metric.removeprefix('held_out_')} {first:.3g} to {last:.3g}")
    return f"{problem}: " + ", ".join(said)


NOISE = (1, 2, 5, 10, 15, 20)
TABLE_1: dict[tuple[str, int | str], dict[str, tuple[float, ...]]] = {
    ("psnr", "best"): {
        "gd": (30.91, 30.93, 31.09, 31.08, 29.68, 28.96),
        "adam": (34.13, 34.06, 33.36, 32.59, 32.56, 33.68),
        "lmd": (34.25, 34.21, 34.22, 28.21, 21.39, 20.12),
    },
    ("psnr", 10): {
        "gd": (27.92, 27.90, 27.73, 26.45, 23.65, 22.97),
        "adam": (31.04, 30.86, 29.91, 29.00, 28.89, 30.32),
        "lmd": (33.27, 33.21, 32.92, 27.88, 19.84, 10.94),
    },
    ("psnr", 20): {
        "gd": (30.91, 30.93, 31.09, 31.08, 29.68, 28.96),
        "adam": (34.03, 34.00, 33.44, 32.40, 32.30, 33.37),
        "lmd": (32.88, 32.87, 33.11, 25.92, 13.25, -21.09),
    },
    ("ssim", "best"): {
        "gd": (0.905, 0.905, 0.898, 0.893, 0.876, 0.850),
        "adam": (0.960, 0.955, 0.935, 0.907, 0.893, 0.917),
        "lmd": (0.963, 0.963, 0.962, 0.950, 0.849, 0.887),
    },
    ("ssim", 10): {
        "gd": (0.862, 0.858, 0.857, 0.817, 0.698, 0.662),
        "adam": (0.914, 0.908, 0.880, 0.831, 0.799, 0.841),
        "lmd": (0.956, 0.955, 0.950, 0.908, 0.689, 0.772),
    },
    ("ssim", 20): {
        "gd": (0.905, 0.905, 0.898, 0.893, 0.876, 0.850),
        "adam": (0.956, 0.951, 0.932, 0.902, 0.889, 0.915),
        "lmd": (0.961, 0.961, 0.961, 0.950, 0.849, 0.878),
    },
}
"""What the paper has, by metric and iteration, at these percentages of noise."""

TABLE_3 = {
    "train_seconds": {2: 5.13, 5: 8.26, 10: 13.41},
    "solve_seconds": {2: 0.422, 5: 1.05, 10: 2.11, 20: 4.22, 50: 10.55},
    "train_gigabytes": {2: 8.24, 5: 12.68, 10: 20.09},
    "solve_gigabytes": {2: 1.52, 5: 1.53, 10: 1.54, 20: 1.57, 50: 1.64},
}
"""What the paper has, of a batch of 25 on a graphics card."""


def noise_table(rows: Rows) -> list[Table]:
    """Table 1, cell by cell: the paper's number and ours."""
    tables = []
    for (metric, k), columns in TABLE_1.items():
        lines = []
        for method, theirs in columns.items():
            ours = [reached(rows, method, metric, k, noise=percent) for percent in NOISE]
            lines.append((method, *(f"{paper} / {own}" for paper, own in zip(theirs, ours, strict=True))))
        adaptive = [f"- / {reached(rows, 'lmd-adaptive', metric, k, noise=percent)}" for percent in NOISE]
        where = "best iteration" if k == "best" else f"iteration {k}"
        heads = ("paper / ours", *(f"{percent}%" for percent in NOISE))
        lines.append(("lmd, learned steps", *adaptive))
        tables.append(Table(f"Table 1, {metric.upper()}, {where}", heads, tuple(lines)))
    return tables


def costs_side_by_side(rows: Rows) -> list[Table]:
    """Table 3, cell by cell: the paper's number and ours."""
    counts = (2, 5, 10, 20, 50)
    lines = []
    for metric, theirs in TABLE_3.items():
        ours = {k: reached(rows, "lmd", metric, k) for k in counts}
        lines.append((metric.replace("_", " "), *(f"{theirs.get(k, '-')} / {ours[k]}" for k in counts)))
    return [Table("Table 3", ("paper / ours", *(f"N = {k}" for k in counts)), tuple(lines))]


HEAD = """# The paper, number by number

Each figure and table of [Data-Driven Mirror Descent with Input-Convex Neural
Networks](https://arxiv.org/abs/2206.06733): what it claims, what the paper prints, and what is found here. Most of its
figures print no numbers; then ours stand alone.
This page is written by `lmd report RESULTS --paper docs/paper.md` from what `lmd reproduce NAME --preset PRESET --out
RESULTS` wrote; only the claims are typed by hand. Each row has its command, and says what data it is of.
"""

HYPER = """## Table 2

The hyper-parameters (Adam with 1e-5 and (0.9, 0.99), N = 10, steps from 0.01 in [0.001, 0.1], batches of 2000 and 10)
are in the recipes. `denoise-published-10` and `inpaint-published-10`, which have the preset `paper` alone (`lmd train
NAME --preset paper`), keep to all of them, from the published code; the pairs and closed forms for SVMs and the linear
classifier have the same steps and batches at that preset, and a rate of 1e-3. Solvers that are not the paper's have
settings of their own. Those that ship were trained in less time, at the preset `standard`; their cards say how.
"""


def write_paper(results: str | Path, file: str | Path) -> Path:
    """Write the page as Markdown from the metrics.json files under a folder; an experiment that is missing is named."""
    found = {metrics["experiment"]: metrics for metrics in map(read_metrics, find_metrics(results))}
    wanted = dict.fromkeys([*(claim.experiment for claim in CLAIMS), "denoise-noise-levels", "cost"])
    if missing := [name for name in wanted if name not in found]:
        raise FileError("folder", f"{results} without {', '.join(missing)}", "what `lmd reproduce all` writes")
    parts = [HEAD]
    for claim in CLAIMS:
        parts.append(_section(claim, found[claim.experiment]))
        if claim.place == "Figure 9":
            parts.append(_tables("Table 1", found["denoise-noise-levels"], noise_table, _TABLE_1_NOTE))
        if claim.place == "Figure 11":
            parts.append(HYPER)
    parts.append(_tables("Table 3", found["cost"], costs_side_by_side, _TABLE_3_NOTE))
    write_text(Path(file), "\n".join(parts))
    return Path(file)


_TABLE_1_NOTE = (
    "The paper's solver was trained at 5% noise alone and diverges beyond; ours saw all levels, and its step is "
    "corrected for the drift. The paper takes 4000 steps of gradient descent for the true minimiser; "
    "ours is certified to 1e-6."
)
_TABLE_3_NOTE = (
    "The paper's are of a graphics card and a batch of 25, ours of one processor: the trend is what compares."
)


def _command(metrics: Mapping[str, Any]) -> str:
    return f"`lmd reproduce {metrics['experiment']} --preset {metrics['preset']} --seed {metrics['seed']}`"


def _section(claim: Claim, metrics: Mapping[str, Any]) -> str:
    lines = {
        "claims": claim.says,
        "command": _command(metrics),
        "data": metrics["facts"].get("data", "made anew"),
        "paper": claim.paper,
        "ours": claim.ours(metrics["rows"]),
        "differs": claim.differs,
    }
    body = "\n".join(f"| {name} | {text} |" for name, text in lines.items())
    return f"## {claim.place}\n\n| | |\n| --- | --- |\n{body}\n"


def _tables(place: str, metrics: Mapping[str, Any], tables: Callable[[Rows], list[Table]], note: str) -> str:
    parts = [
        f"## {place}\n\n{_command(metrics)}, {metrics['facts'].get('data', metrics['facts'].get('batch'))}. {note}\n"
    ]
    for table in tables(metrics["rows"]):
        head = f"| {' | '.join(table.columns)} |\n|{' --- |' * len(table.columns)}"
        body = "\n".join(f"| {' | '.join(line)} |" for line in table.lines)
        parts.append(f"{table.title}\n\n{head}\n{body}\n")
    return "\n".join(parts)
