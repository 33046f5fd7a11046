"""Training of a solver on a family. Each update samples a batch, unrolls the solver and takes an Adam step."""

from __future__ import annotations

import atexit
import math
import os
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from lmd.core.config import to_config
from lmd.core.files import check_current_folder
from lmd.core.progress import ProgressBar
from lmd.errors import InputError, TrainingError, TrainingWarning
from lmd.problems.base import Family, Problem, check_values
from lmd.solvers.base import Solver, check_fit
from lmd.solvers.saving import save
from lmd.training.folder import (
    LOG_FILE,
    Log,
    LogLine,
    check_resume,
    flatten,
    newest_checkpoint,
    open_run,
    unflatten,
    write_checkpoint,
)
from lmd.training.instances import check_sample
from lmd.training.loss import UnrolledLoss
from lmd.training.settings import TrainingSettings, training_seed, validation_seed

ADAM_BETAS = (0.9, 0.99)  # as in the published code
Callback = Callable[[LogLine], object]


@dataclass(frozen=True)
class Validation:
    """The two parts of the unrolled loss on the held-out batch, after `updates` updates."""

    updates: int
    value: float
    inconsistency: float

    def loss(self, consistency_weight: float) -> float:
        """Return the loss, with weight s for the inconsistency."""
        return self.value + consistency_weight * self.inconsistency


@dataclass(frozen=True)
class TrainingResult:
    """The trained solver and how the training went.

    Args:
        solver: The solver that was passed in, with the weights of the best validation, or with the last weights if
            there was no validation.
        updates: The number of updates, over all sessions of the run.
        skipped: The number of batches that were skipped because their loss or gradient was not finite.
        seconds: The time spent, over all sessions of the run.
        best_validation: The validation of the weights that the solver has now; None if there was no validation.
        improved: Whether training improved the held-out loss; None if there was no validation.
        records: The log, one record per line of the file.
    """

    solver: Solver[Any]
    updates: int
    skipped: int
    seconds: float
    best_validation: Validation | None
    improved: bool | None
    records: tuple[LogLine, ...]

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return two lists for an entry of the log: the numbers of updates when it was recorded, and its values."""
        rows = [(record["updates"], record[name]) for record in self.records if record.get(name) is not None]
        return [done for done, _ in rows], [value for _, value in rows]


def train(
    solver: Solver[Any],
    family: Family,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    callback: Callback | None = None,
    **settings: Any,
) -> TrainingResult:
    """Train a solver in place on problems of a family: Adam minimises the unrolled loss of section 3.3 of the paper.

    After each update, every module of the solver applies its constraints (`constrain_`). Batches whose loss or gradient
    is not finite are skipped and counted.

    With `out`, a log, checkpoints and the best solver so far are saved in that folder. With `resume`, an interrupted
    run continues and ends with the same weights (on the CPU, to the bit). If the folder is empty, a new run starts.
    Under `torchrun`, each batch is split between the processes.

    Afterwards the solver has the weights with the lowest validation loss at the current consistency weight. With
    `validate_every=0` it has the weights of the last update. If training did not improve the validation loss,
    `improved` of the result is False, and a `TrainingWarning` is issued.

    Args:
        solver: A solver with parameters, which are changed.
        family: The distribution of problems and starting points.
        out: The folder of the run; if None, nothing is written.
        resume: Whether to continue the run in `out`.
        progress: Whether to show a progress bar; if None, it is shown on a terminal.
        callback: A function that is called with each record of the log. Training ends if it returns True.
        **settings: The fields of `lmd.training.TrainingSettings`: `updates`, `batch`, `learning_rate` and so on.

    >>> import lmd
    >>> solver = lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2).double(), iterations=3).double()
    >>> result = lmd.train(solver, lmd.problems.LeastSquaresFamily(), updates=20, batch=8)
    >>> result.updates, result.best_validation.value < result.curve("validation_value")[1][0]
    (20, True)
    """
    chosen = TrainingSettings.from_arguments(settings)
    device = _check_arguments(solver, family)
    check_resume(out, resume)
    check_current_folder()
    processes = join_processes(device)
    with torch.inference_mode(False):
        training = _Training(solver.to(processes.device), family, chosen, processes)
    try:
        shown = progress if processes.is_main else False
        with torch.inference_mode(False), torch.enable_grad(), ProgressBar("training", chosen.updates, shown) as bar:
            return training.run(out, resume, bar, callback)
    except RuntimeError as error:
        if "nference tensor" not in str(error):
            raise
        raise InputError("family", "tensors made in torch.inference_mode", "a family made outside of it") from None


def _check_arguments(solver: object, family: object) -> torch.device:
    """Return the device of the solver; raise an InputError if the solver or the family cannot be used for training."""
    if not isinstance(solver, Solver):
        raise InputError("solver", type(solver).__name__, "an lmd.solvers.Solver")
    if not isinstance(family, Family):
        raise InputError("family", type(family).__name__, "an lmd.problems.Family")
    parameters = [parameter for parameter in solver.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("solver", f"{type(solver).__name__} without parameters", "a solver with something to learn")
    if parameters[0].is_meta or parameters[0].is_inference():
        given = "on the meta device" if parameters[0].is_meta else "made in torch.inference_mode"
        raise InputError("solver", f"weights {given}", "a solver that was made outside of it")
    return parameters[0].device


@dataclass(frozen=True)
class Processes:
    """The rank of this process and the number of processes of the run; a single process has rank 0 of 1.

    Under `torchrun`, every process draws the same global batch and takes its own slice. Gradients are averaged by
    DistributedDataParallel. So the result is the same as with one process, up to rounding.
    """

    device: torch.device  # the device that this process uses
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def check_batch(self, argument: str, batch: int) -> None:
        """Raise an InputError if the processes cannot have equal shares of a batch."""
        if batch % self.world:
            raise InputError(argument, batch, f"a multiple of {self.world}, the number of processes")

    def share(self, problem: Problem, x0: Tensor) -> tuple[Problem, Tensor]:
        """Return the slice of a global batch for this process."""
        if self.world == 1:
            return problem, x0
        size = x0.shape[0] // self.world
        index = slice(self.rank * size, (self.rank + 1) * size)
        return problem.select(index), x0[index]

    def wrap(self, loss: nn.Module) -> nn.Module:
        """Return the loss with gradients averaged over the processes."""
        if self.world == 1:
            return loss
        # Each update records the same graph. `static_graph` also allows parameters that no iteration uses.
        return nn.parallel.DistributedDataParallel(loss, static_graph=True)

    def mean(self, numbers: Tensor) -> Tensor:
        """Return the mean of each number over the processes."""
        if self.world > 1:
            distributed.all_reduce(numbers)
            numbers = numbers / self.world
        return numbers

    def main_decides(self, decide: Callable[[], bool]) -> bool:
        """Call `decide` in the main process and return its result in all processes; if it raises an error, all stop."""
        answer, error = -1, None
        if self.is_main:
            try:
                answer = int(decide())
            except Exception as problem:
                error = problem
        if self.world > 1:
            message = torch.tensor(answer, dtype=torch.int64, device=self.device)
            distributed.broadcast(message, src=0)
            answer = int(message)
        if error is not None:
            raise error
        if answer < 0:
            raise TrainingError("the main process stopped the run; its message says why")
        return bool(answer)


def join_processes(device: torch.device) -> Processes:
    """Return the rank of this process in a run of `torchrun`, or rank 0 of 1 without `torchrun`."""
    if not distributed.is_available():
        return Processes(device)
    if not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or "RANK" not in os.environ:
            return Processes(device)
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        atexit.register(distributed.destroy_process_group)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return Processes(device, distributed.get_rank(), distributed.get_world_size())


class _Training:
    """The state of a training run, with methods for its updates, validations and checkpoints."""

    def __init__(self, solver: Solver[Any], family: Family, settings: TrainingSettings, processes: Processes) -> None:
        self.solver, self.family, self.settings, self.processes = solver, family, settings, processes
        self.loss = UnrolledLoss(solver, settings)
        self.parameters = [parameter for parameter in solver.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.Adam(self.parameters, lr=settings.learning_rate, betas=ADAM_BETAS)
        self.largest_norm = math.sqrt(min(torch.finfo(parameter.dtype).max for parameter in self.parameters))
        self.generator = torch.Generator(device=processes.device)
        held_out = settings.validation_batch or settings.batch
        processes.check_batch("batch", settings.batch)
        processes.check_batch("validation_batch", held_out)
        problem, x0 = self._sample(validation_seed(settings.seed), held_out, family.held_out)
        check_fit(solver, problem, x0)
        with torch.no_grad():
            self.start_value = float(check_values(problem, problem.value(x0), x0).mean())
        self.held_out = processes.share(problem, x0)
        self.updates = self.skipped = 0
        self.best: Validation | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.log = Log()
        self.seconds_before = 0.0

    def run(self, out: str | Path | None, resume: bool, bar: ProgressBar, callback: Callback | None) -> TrainingResult:
        """Do the remaining updates and return the result."""
        self.begun, self.folder = time.perf_counter(), None if out is None else Path(out)
        with ExitStack() as stack:
            self._open(resume, stack)
            module = self.processes.wrap(self.loss)
            bar.update(self.updates)
            stopped = self.updates == 0 and self._validates() and self._record({}, callback)
            while self.updates < self.settings.updates and not stopped:
                figures = self._update(module)
                bar.update(1, f"loss {figures['loss']:.4g}  inconsistency {figures['inconsistency']:.3g}")
                if self._is_due(self.settings.log_every) or self._validates() or "reason" in figures:
                    stopped = self._record(figures, callback)
                if self.skipped > (allowed := self.settings.skips_allowed):
                    raise TrainingError(
                        f"training stopped after {self.updates} updates: {self.skipped} batches had a loss or gradient "
                        f"that was not finite, and max_skipped allows {allowed}; use a smaller learning_rate, "
                        "clip_gradient=1.0, smaller initial steps in the solver, or fewer iterations"
                    )
                if self._is_due(self.settings.checkpoint_every) or stopped:
                    self._save()
        if self.best is not None:
            self.solver.load_state_dict(self.best_weights)
        self._warn_if_in_vain()
        records = tuple(self.log.records)
        return TrainingResult(
            self.solver, self.updates, self.skipped, self._seconds(), self.best, self._improved, records
        )

    def _is_due(self, every: int) -> bool:
        return self.updates % every == 0 or self.updates == self.settings.updates

    def _validates(self) -> bool:
        return self.settings.validate_every > 0 and self._is_due(self.settings.validate_every)

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.begun

    def _sample(self, seed: int, batch: int, draw: Callable[..., Any]) -> tuple[Problem, Tensor]:
        return check_sample(draw(batch, self.generator.manual_seed(seed)), batch)

    def _update(self, module: nn.Module) -> dict[str, Any]:
        """Draw a batch, do an update if its loss and gradient are finite, and return the numbers for the log."""
        seed = training_seed(self.settings.seed, self.updates)
        problem, x0 = self.processes.share(*self._sample(seed, self.settings.batch, self.family.sample))
        rate = self.settings.learning_rate_at(self.updates)
        weight = self.settings.consistency_weight_at(self.updates)
        self.optimiser.zero_grad(set_to_none=True)
        parts = module(problem, x0, weight)
        parts.loss.backward()
        loss, value, inconsistency = self.processes.mean(torch.stack([part.detach() for part in parts])).tolist()
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_gradient or math.inf))
        self.updates += 1
        figures = {"loss": loss, "value": value, "inconsistency": inconsistency, "gradient_norm": norm}
        figures |= {"learning_rate": rate, "consistency_weight": weight}
        # Adam squares the gradient. If the square overflows, the parameter never changes again.
        if not (math.isfinite(loss) and norm < self.largest_norm):
            self.skipped += 1
            return {**figures, "reason": "gradient" if math.isfinite(loss) else "loss"}
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        for module in self.solver.modules():
            if callable(constrain := getattr(module, "constrain_", None)):
                constrain()
        return figures

    @property
    def _improved(self) -> bool | None:
        """Whether the best weights so far come from an update, not from the start; None without validation."""
        return None if self.settings.validate_every == 0 else self.best is not None and self.best.updates > 0

    def _warn_if_in_vain(self) -> None:
        if self._improved is not False or self.updates == 0 or not self.processes.is_main:
            return
        where = "the log of the result" if self.folder is None else str(self.folder / LOG_FILE)
        whose = "those of the last update" if self.best is None else "the ones it came with"
        message = (
            f"training never improved the solver: after none of its {self.updates} updates was the held-out loss found "
            f"to be lower than before them, and its weights are {whose}; use a smaller learning_rate, more updates, a "
            f"larger batch, a smaller validate_every or clip_gradient=1.0, and see {where}"
        )
        warnings.warn(message, TrainingWarning, stacklevel=4)

    def _validate(self) -> Validation:
        weight = self.settings.consistency_weight_at(self.updates)
        with torch.no_grad():
            parts = self.loss(*self.held_out, weight)
        value, inconsistency = self.processes.mean(torch.stack([parts.value, parts.inconsistency])).tolist()
        validation = Validation(self.updates, value, inconsistency)
        best = math.inf if self.best is None else self.best.loss(weight)
        if validation.loss(weight) < best:  # False for a NaN
            self.best = validation
            self.best_weights = {name: tensor.clone() for name, tensor in self.solver.state_dict().items()}
        return validation

    def _record(self, figures: dict[str, Any], callback: Callback | None) -> bool:
        """Write a line of the log, with a validation if it is due; return whether the callback ends the training."""
        record: dict[str, Any] = {"updates": self.updates, **figures, "skipped": self.skipped}
        if self._validates():
            found = self._validate()
            loss = found.loss(self.settings.consistency_weight_at(self.updates))
            record |= {"validation_loss": loss, "validation_value": found.value}
            record |= {"validation_inconsistency": found.inconsistency, "improved": self._improved}
        plain = self.log.write({**record, "seconds": self._seconds()})
        return self.processes.main_decides(lambda: callback is not None and bool(callback(dict(plain))))

    def _configuration(self) -> dict[str, Any]:
        """Return the configuration of the run; `start_value` tells apart families of the same name."""
        start_value = f"{self.start_value:.4g}"
        return {
            "format": 1,
            "solver": to_config(self.solver),
            "family": {"name": self.family.name, "start_value": start_value},
            "dtype": str(self.parameters[0].dtype).removeprefix("torch."),
            "settings": asdict(self.settings),
        }

    def _open(self, resume: bool, stack: ExitStack) -> None:
        """Prepare the folder. Restore a run that is continued; write a checkpoint of 0 updates for a new one."""
        if self.folder is None:
            return
        run = open_run(self.folder, resume, self._configuration())
        log_path = self.folder / LOG_FILE if self.processes.is_main else None
        if self.processes.main_decides(lambda: stack.enter_context(run)):
            self.log = Log(log_path, self._restore(self.folder))
            self._export(self.folder)
        else:
            self._save()
            self.log = Log(log_path)

    def _restore(self, folder: Path) -> list[LogLine]:
        """Restore the newest checkpoint; return the records of the log up to this checkpoint."""
        newest = newest_checkpoint(folder)
        assert newest is not None  # `open_run` has found one
        _, state, groups = newest
        self.solver.load_state_dict(groups["weights"])
        moments = {int(index): named for index, named in unflatten(groups.get("optimiser", {}), ".").items()}
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        self.best_weights = groups.get("best", {})
        self.updates, self.skipped, self.seconds_before = state["updates"], state["skipped"], state["seconds"]
        self.best = None if state["best"] is None else Validation(**state["best"])
        return list(state["records"])

    def _save(self) -> None:
        """Write a checkpoint and the best solver so far."""
        if self.folder is None or not self.processes.is_main:
            return
        state = {
            **self._configuration(),
            "updates": self.updates,
            "skipped": self.skipped,
            "seconds": self._seconds(),
            "best": None if self.best is None else vars(self.best),
            "records": self.log.records,
        }
        moments = flatten(self.optimiser.state_dict()["state"], ".")
        groups = {"weights": self.solver.state_dict(), "optimiser": moments, "best": self.best_weights}
        write_checkpoint(self.folder, self.updates, state, groups)
        self._export(self.folder)

    def _export(self, folder: Path) -> None:
        if self.processes.is_main:
            done: dict[str, Any] = {"family": self.family.name, "updates": self.updates}
            done |= {"settings": asdict(self.settings), "improved": self._improved}
            if self.best is not None:
                done["best_validation"] = vars(self.best)
            save(self.solver, folder, weights=self.best_weights or None, card={"training": done})
