"""A solver as a folder: `solver.json` says what it is, `weights.safetensors` holds its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lmd.checks import check_finite
from lmd.config import Configurable, from_config, to_config
from lmd.errors import FileError, InputError
from lmd.files import json_text, read_json, read_tensors, sha256, writable_folder, write_json, write_tensors
from lmd.solvers.base import Solver

FORMAT = 1
SOLVER_FILE = "solver.json"
WEIGHTS_FILE = "weights.safetensors"


def save(solver: Solver[Any], folder: str | Path, *, weights: Mapping[str, Tensor] | None = None, **card: Any) -> Path:
    """Write a solver to a folder; `card` is what else should be known of it (what it was trained on, measured at).

    `weights` are written in place of the solver's own, such as the best ones of a training that still goes on.
    The weights are written first and their hash goes into `solver.json`, so a pair that does not belong together is
    recognised.
    """
    description = {"format": FORMAT, "solver": to_config(solver), "weights_sha256": ""}
    if clash := sorted(set(card) & set(description)):
        raise InputError("card", f"{clash[0]!r}", f"other names than {', '.join(description)}")
    json_text("card", {**description, **card})  # before anything is overwritten
    folder = writable_folder("folder", folder)
    write_tensors(folder / WEIGHTS_FILE, solver.state_dict() if weights is None else weights)
    description["weights_sha256"] = sha256(folder / WEIGHTS_FILE)
    write_json(folder / SOLVER_FILE, {**description, **card})
    return folder


def load(folder: str | Path) -> Solver[Any]:
    """The solver that `save` wrote to a folder, on the CPU, with the dtype it had."""
    folder = Path(folder)
    if not (folder / SOLVER_FILE).is_file():
        raise FileError("solver", f"{folder}, which has no {SOLVER_FILE}", "a folder that lmd wrote a solver to")
    description = read_json(folder / SOLVER_FILE)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise FileError("solver", f"{folder / SOLVER_FILE}", f"a solver of format {FORMAT}")
    weights = read_tensors(folder / WEIGHTS_FILE)
    if sha256(folder / WEIGHTS_FILE) != description.get("weights_sha256"):
        raise FileError("solver", f"{folder / WEIGHTS_FILE}, other weights than {SOLVER_FILE} names", "matching files")
    solver = from_config(description.get("solver"))
    if not isinstance(solver, Solver):
        raise FileError("solver", f"{folder / SOLVER_FILE}, a {type(solver).__name__}", "a solver")
    return load_weights(solver, weights)


def load_weights(module: Any, weights: dict[str, Any]) -> Any:
    """Give a module the numbers of a state dict, dtype included; names and shapes must be its own."""
    assert isinstance(module, nn.Module) and isinstance(module, Configurable)
    own = module.state_dict()
    if missing := sorted(set(own) ^ set(weights)):
        raise InputError("weights", f"names that differ: {', '.join(missing[:4])}", f"those of {type(module).__name__}")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            raise InputError("weights", f"{name} of shape {tuple(tensor.shape)}", f"shape {tuple(own[name].shape)}")
        if tensor.dtype.is_floating_point != own[name].dtype.is_floating_point:
            raise InputError("weights", f"{name} of {tensor.dtype}", f"a dtype like {own[name].dtype}")
    for name, _ in module.named_parameters():
        check_finite(f"weights {name}", weights[name])
    module.load_state_dict(weights, assign=True)
    return module
