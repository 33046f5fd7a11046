"""Save and load a solver as a folder: `solver.json` describes it, `weights.safetensors` holds its weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from lmd.core import files
from lmd.core.checks import check_finite
from lmd.core.config import Configurable, from_config, to_config
from lmd.errors import FileError, InputError
from lmd.solvers.base import Solver

FORMAT = 1
SOLVER_FILE = "solver.json"
WEIGHTS_FILE = "weights.safetensors"

WEIGHT_DTYPES = (torch.float32, torch.float64)

# Functions that allocate a tensor of any size
FACTORY_NAMES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
FACTORIES = tuple(getattr(torch, name) for name in FACTORY_NAMES)

# Building a solver may allocate at most ratio * (numbers in its weights) + extra numbers
MAX_BUILD_RATIO, MAX_BUILD_EXTRA = 8, 1_000_000


def save(
    solver: Solver[Any],
    folder: str | Path,
    *,
    weights: Mapping[str, Tensor] | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Write a solver to a folder and return the folder.

    The weights are written first and their hash is stored in `solver.json`, so that `load` detects two files that do
    not belong together.

    Args:
        solver: Any solver.
        folder: The folder, created if it does not exist.
        weights: Weights by name, as in `state_dict`; None is the solver's own.
        card: JSON values by name, such as the training data; None is the solver's own `card`.
    """
    description = {"format": FORMAT, "solver": to_config(solver), "weights_sha256": ""}
    card = dict(solver.card) if card is None else card
    if card:
        description["card"] = card
    files.json_text("card", description)  # before anything is overwritten
    folder = files.writable_folder("folder", folder)
    files.write_tensors(folder / WEIGHTS_FILE, solver.state_dict() if weights is None else weights)
    description["weights_sha256"] = files.sha256(folder / WEIGHTS_FILE)
    files.write_json(folder / SOLVER_FILE, files.with_checksum(description))
    return folder


@torch.inference_mode(False)
def load(folder: str | Path) -> Solver[Any]:
    """Return the solver that `save` wrote to a folder, on the CPU, with its dtype and card.

    Args:
        folder: A folder that `save`, `lmd.train` or `lmd.learn` wrote.
    """
    folder = Path(folder)
    if not (folder / SOLVER_FILE).is_file():
        raise FileError("solver", f"{folder}, which has no {SOLVER_FILE}", "a folder that lmd wrote a solver to")
    description = files.read_json(folder / SOLVER_FILE)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise FileError("solver", f"{folder / SOLVER_FILE}", f"a solver of format {FORMAT}")
    weights = files.read_tensors(folder / WEIGHTS_FILE)
    if files.sha256(folder / WEIGHTS_FILE) != description.get("weights_sha256"):
        raise FileError("solver", f"{folder / WEIGHTS_FILE}, other weights than {SOLVER_FILE} names", "matching files")
    solver = _build(folder / SOLVER_FILE, description.get("solver"), sum(map(Tensor.numel, weights.values())))
    if not isinstance(solver, Solver):
        raise FileError("solver", f"{folder / SOLVER_FILE}, a {type(solver).__name__}", "a solver")
    card = description.get("card")
    solver.card = card if isinstance(card, dict) else {}
    return load_weights(solver, weights)


def _build(path: Path, config: object, numbers: int) -> Configurable:
    """Build the object of a configuration, unless it allocates far more numbers than the weights have."""
    try:
        with AllocationLimit(MAX_BUILD_RATIO * numbers + MAX_BUILD_EXTRA):
            return from_config(config)
    except InputError:
        raise
    except Exception as error:  # a constructor may raise any error on damaged arguments
        reason = " ".join(str(error).split())
        raise FileError("solver", f"{path}, which does not fit ({reason:.120})", "what lmd wrote") from None


class AllocationLimit(TorchFunctionMode):
    """A mode that refuses to allocate tensors with more than `numbers` entries in total."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = self.left = numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES:
            try:
                self.left -= 1 + _numbers_of(func, args, kwargs)
            except (RuntimeError, TypeError, ArithmeticError):  # a size that no tensor can have
                self.left = -1
            if self.left < 0:
                raise InputError("solver", "sizes that its weights do not have", f"at most {self.numbers} numbers")
        return func(*args, **kwargs)


def _numbers_of(func: Any, args: Any, kwargs: Any) -> int:
    """Return the number of entries of the tensor that `func` would allocate."""
    if func is torch.arange and args:  # meta tensors of these three functions import too much of PyTorch
        return len(range(*args))
    if func is torch.eye and args:
        return math.prod((*args, *args)[:2])
    if func is torch.linspace and len(args) == 3:
        return int(args[2])
    numbers: int = func(*args, **{**kwargs, "device": "meta"}).numel()
    return numbers


def load_weights(module: Any, weights: dict[str, Any]) -> Any:
    """Load a state dict into a module, including its dtype; names and shapes must match."""
    own = module.state_dict()
    if missing := sorted(set(own) ^ set(weights)):
        raise InputError("weights", f"names that differ: {', '.join(missing[:4])}", f"those of {type(module).__name__}")
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape:
            raise InputError("weights", f"{name} of shape {tuple(tensor.shape)}", f"shape {tuple(own[name].shape)}")
        kinds = WEIGHT_DTYPES if own[name].dtype.is_floating_point else (own[name].dtype,)
        if tensor.dtype not in kinds:
            raise InputError("weights", f"{name} of {tensor.dtype}", " or ".join(map(str, kinds)))
    floats = sorted({str(tensor.dtype) for tensor in weights.values() if tensor.dtype.is_floating_point})
    if len(floats) > 1:
        raise InputError("weights", f"{' and '.join(floats)} together", "one dtype for all of them")
    for name, _ in module.named_parameters():
        check_finite(f"weights {name}", weights[name])
    module.load_state_dict(weights, assign=True)
    return module
