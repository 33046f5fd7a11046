"""A solver as a folder: `solver.json` says what it is, `weights.safetensors` holds its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lmd.core.checks import check_finite
from lmd.core.config import Configurable, from_config, to_config
from lmd.core.files import (
    json_text,
    read_json,
    read_tensors,
    sha256,
    with_checksum,
    writable_folder,
    write_json,
    write_tensors,
)
from lmd.errors import FileError, InputError
from lmd.solvers.base import Solver

FORMAT = 1
SOLVER_FILE = "solver.json"
WEIGHTS_FILE = "weights.safetensors"

WEIGHT_DTYPES = (torch.float32, torch.float64)

# Functions that allocate a tensor of any size
FACTORY_NAMES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")
FACTORIES = tuple(getattr(torch, name) for name in FACTORY_NAMES)

# Numbers that are allocated at most while a solver is built: those of its weights times the ratio, and the extra
MAX_BUILD_RATIO, MAX_BUILD_EXTRA = 8, 1_000_000


def save(
    solver: Solver[Any],
    folder: str | Path,
    *,
    weights: Mapping[str, Tensor] | None = None,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Write a solver to a folder and return the folder.

    The weights are written first and their hash goes into `solver.json`, so that a pair that does not belong together
    is recognised.

    Args:
        solver: Any solver.
        folder: It is made where it is missing.
        weights: By name, as in `state_dict`; None is the solver's own.
        card: JSON values by name, such as what it was trained on; None is the solver's own `card`.
    """
    description = {"format": FORMAT, "solver": to_config(solver), "weights_sha256": ""}
    card = dict(solver.card) if card is None else card
    if card:
        description["card"] = card
    json_text("card", description)  # before anything is overwritten
    folder = writable_folder("folder", folder)
    write_tensors(folder / WEIGHTS_FILE, solver.state_dict() if weights is None else weights)
    description["weights_sha256"] = sha256(folder / WEIGHTS_FILE)
    write_json(folder / SOLVER_FILE, with_checksum(description))
    return folder


@torch.inference_mode(False)
def load(folder: str | Path) -> Solver[Any]:
    """Return the solver that `save` wrote to a folder, on the CPU, with the dtype and the card it had.

    Args:
        folder: The one that was given to `save`, or one of `lmd.train` or `lmd.learn`.
    """
    folder = Path(folder)
    if not (folder / SOLVER_FILE).is_file():
        raise FileError("solver", f"{folder}, which has no {SOLVER_FILE}", "a folder that lmd wrote a solver to")
    description = read_json(folder / SOLVER_FILE)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise FileError("solver", f"{folder / SOLVER_FILE}", f"a solver of format {FORMAT}")
    weights = read_tensors(folder / WEIGHTS_FILE)
    if sha256(folder / WEIGHTS_FILE) != description.get("weights_sha256"):
        raise FileError("solver", f"{folder / WEIGHTS_FILE}, other weights than {SOLVER_FILE} names", "matching files")
    solver = _build(folder / SOLVER_FILE, description.get("solver"), sum(map(Tensor.numel, weights.values())))
    if not isinstance(solver, Solver):
        raise FileError("solver", f"{folder / SOLVER_FILE}, a {type(solver).__name__}", "a solver")
    card = description.get("card")
    solver.card = card if isinstance(card, dict) else {}
    return load_weights(solver, weights)


def _build(path: Path, config: object, numbers: int) -> Configurable:
    """Build what the configuration describes, if it has about as many numbers as the weights."""
    try:
        with AllocationLimit(MAX_BUILD_RATIO * numbers + MAX_BUILD_EXTRA):
            return from_config(config)
    except InputError:
        raise
    except Exception as error:  # a constructor may raise anything on arguments that nobody wrote
        reason = " ".join(str(error).split())
        raise FileError("solver", f"{path}, which does not fit ({reason:.120})", "what lmd wrote") from None


class AllocationLimit(TorchFunctionMode):
    """Refuses to allocate tensors of more than `numbers` numbers altogether."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = self.left = numbers

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in FACTORIES:
            try:
                self.left -= 1 + _numbers_of(func, args, kwargs)
            except (RuntimeError, TypeError, ArithmeticError):  # no tensor can be so large
                self.left = -1
            if self.left < 0:
                raise InputError("solver", "sizes that its weights do not have", f"at most {self.numbers} numbers")
        return func(*args, **kwargs)


def _numbers_of(func: Any, args: Any, kwargs: Any) -> int:
    """The size of the tensor; `arange` is counted here, as PyTorch imports half of itself to do it."""
    if func is torch.arange and not {"start", "end", "step"} & set(kwargs):
        start, end, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
        return max(0, math.ceil((end - start) / step))
    numbers: int = func(*args, **{**kwargs, "device": "meta"}).numel()
    return numbers


def load_weights(module: Any, weights: dict[str, Any]) -> Any:
    """Give a module the numbers of a state dict, dtype included; names and shapes must be its own."""
    assert isinstance(module, nn.Module) and isinstance(module, Configurable)
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
