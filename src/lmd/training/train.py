"""Training of a solver on a family: sample, unroll, update, constrain, and again."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmd.core.config import to_config
from lmd.core.files import check_current_folder
from lmd.errors import FileError, InputError, TrainingError, TrainingWarning
from lmd.problems.base import Family, Problem, as_problem, check_values
from lmd.solvers.base import Solver, check_fit
from lmd.solvers.saving import save
from lmd.training.checkpoints import (
    Checkpoint,
    RunFolder,
    load_optimiser,
    newest_checkpoint,
    optimiser_tensors,
    write_checkpoint,
)
from lmd.training.distributed import Processes, join_processes
from lmd.training.log import Log, LogLine, ProgressBar, read_log
from lmd.training.loss import UnrolledLoss
from lmd.training.settings import TrainingSettings, training_seed, validation_seed

ADAM_BETAS = (0.9, 0.99)  # as in the published code
Callback = Callable[[LogLine], object]


@dataclass(frozen=True)
class Validation:
    """The parts of the unrolled loss on the held-out batch, after some number of updates."""

    updates: int
    value: float
    inconsistency: float

    def loss(self, consistency_weight: float) -> float:
        """Return the loss at a weight s of the inconsistency."""
        return self.value + consistency_weight * self.inconsistency


@dataclass(frozen=True)
class TrainingResult:
    """The trained solver and how the training went.

    Args:
        solver: The solver that was passed in, with the best weights on validation, or the last ones where there was
            none.
        updates: Updates done, over all sessions of the run.
        skipped: Batches that were skipped because their loss or gradient was not finite.
        seconds: Time spent, over all sessions of the run.
        best_validation: Of the weights which the solver has now; None where there was no validation.
        improved: Whether training improved the held-out loss; None where there was no validation.
        records: The log.
    """

    solver: Solver[Any]
    updates: int
    skipped: int
    seconds: float
    best_validation: Validation | None
    improved: bool | None
    records: tuple[LogLine, ...]

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return the numbers of updates at which an entry of the log was recorded, and its values."""
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
    """Train a solver in place on problems of a family, by Adam on the unrolled loss of section 3.3 of the paper.

    After each update every module of the solver applies its constraints (`constrain_`). A batch whose loss or gradient
    is not finite is skipped and counted.

    With `out`, a log, checkpoints and the best solver so far are saved in that folder. With `resume`, an interrupted
    run continues and ends with the same weights (on the CPU to the bit); an empty folder starts a new run. Under
    `torchrun` each batch is split between the processes.

    Afterwards the solver has the weights with the lowest validation loss at the current consistency weight, or with
    `validate_every=0` those of the last update. If training improved nothing, `improved` of the result is False, and a
    `TrainingWarning` is issued.

    Args:
        solver: A solver with parameters, which are changed.
        family: The distribution of problems and starting points.
        out: A folder for the run; None writes nothing.
        resume: Whether to continue the run in `out`.
        progress: Whether to show a progress bar; None shows one on a terminal.
        callback: A function that is called with each record of the log and ends the training by returning True.
        **settings: The fields of `lmd.training.TrainingSettings`: `updates`, `batch`, `learning_rate` and so on.

    >>> import lmd
    >>> solver = lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2).double(), iterations=3).double()
    >>> result = lmd.train(solver, lmd.problems.LeastSquaresFamily(), updates=20, batch=8)
    >>> result.updates, result.best_validation.value < result.curve("validation_value")[1][0]
    (20, True)
    """
    chosen = TrainingSettings.from_arguments(settings)
    device = _check_arguments(solver, family, out, resume)
    check_current_folder()
    processes = join_processes(device)
    folder = None if out is None else RunFolder(out)
    with torch.inference_mode(False):
        training = _Training(solver.to(processes.device), family, chosen, processes, folder)
    bar = ProgressBar(progress if processes.is_main else False, chosen.updates)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return training.run(resume, bar, callback)
    except RuntimeError as error:
        if "nference tensor" not in str(error):
            raise
        raise InputError("family", "tensors made in torch.inference_mode", "a family made outside of it") from None


def _check_arguments(solver: object, family: object, out: object, resume: bool) -> torch.device:
    """Raise where a solver cannot be trained so; return the device that it is on."""
    if not isinstance(solver, Solver):
        raise InputError("solver", type(solver).__name__, "an lmd.solvers.Solver")
    if not isinstance(family, Family):
        raise InputError("family", type(family).__name__, "an lmd.problems.Family")
    if resume and out is None:
        raise InputError("resume", "True without out", "out=FOLDER, the folder of the run to go on with")
    parameters = [parameter for parameter in solver.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("solver", f"{type(solver).__name__} without parameters", "a solver with something to learn")
    if parameters[0].is_meta or parameters[0].is_inference():
        given = "on the meta device" if parameters[0].is_meta else "made in torch.inference_mode"
        raise InputError("solver", f"weights {given}", "a solver that was made outside of it")
    return parameters[0].device


class _Training:
    """The state of a training run, and its updates."""

    def __init__(
        self,
        solver: Solver[Any],
        family: Family,
        settings: TrainingSettings,
        processes: Processes,
        folder: RunFolder | None,
    ) -> None:
        self.solver, self.family, self.settings = solver, family, settings
        self.processes, self.folder = processes, folder
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

    def run(self, resume: bool, bar: ProgressBar, callback: Callback | None) -> TrainingResult:
        """Do the remaining updates."""
        self.begun = self.marked = time.perf_counter()
        try:
            self._open(resume)
            self.marked_updates = self.updates
            module = self.processes.wrap(self.loss)
            bar.start(self.updates)
            stopped = self.updates == 0 and self._validates() and self._record({}, callback)
            while self.updates < self.settings.updates and not stopped:
                figures = self._update(module)
                bar.update(self.updates, figures["loss"], figures["inconsistency"])
                if self._is_due(self.settings.log_every) or self._validates() or "reason" in figures:
                    stopped = self._record(figures, callback)
                self._stop_if_hopeless()
                if self._is_due(self.settings.checkpoint_every) or stopped:
                    self._save()
        finally:
            bar.close()
            self.log.close()
            if self.folder is not None:
                self.folder.close()
        if self.best is not None:
            self.solver.load_state_dict(self.best_weights)
        self._warn_if_in_vain()
        return self._result()

    def _is_due(self, every: int) -> bool:
        return self.updates % every == 0 or self.updates == self.settings.updates

    def _validates(self) -> bool:
        return self.settings.validate_every > 0 and self._is_due(self.settings.validate_every)

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.begun

    def _sample(self, seed: int, batch: int, draw: Callable[..., Any]) -> tuple[Problem, Tensor]:
        sample = draw(batch, self.generator.manual_seed(seed))
        if not (isinstance(sample, tuple) and len(sample) == 2 and isinstance(sample[1], Tensor)):
            raise InputError("family", f"a sample that is a {type(sample).__name__}", "(problem, x0), x0 a tensor")
        problem, x0 = as_problem(sample[0]), sample[1]
        if x0.shape[0] != batch:
            raise InputError("family", f"a sample of {x0.shape[0]} instances", f"the {batch} that were asked for")
        return problem, x0

    def _update(self, module: nn.Module) -> dict[str, Any]:
        """Draw a batch, do an update unless its loss or gradient is not finite, and return the figures."""
        seed = training_seed(self.settings.seed, self.updates)
        problem, x0 = self.processes.share(*self._sample(seed, self.settings.batch, self.family.sample))
        rate = self.settings.learning_rate_at(self.updates)
        weight = self.settings.consistency_weight_at(self.updates)
        self.optimiser.zero_grad(set_to_none=True)
        parts = module(problem, x0, weight)
        parts.loss.backward()
        loss, value, inconsistency = self.processes.mean(torch.stack([part.detach() for part in parts])).tolist()
        norm = _gradient_norm(self.parameters)
        self.updates += 1
        figures = {"loss": loss, "value": value, "inconsistency": inconsistency, "gradient_norm": norm}
        figures |= {"learning_rate": rate, "consistency_weight": weight}
        # Adam squares the gradient; a norm whose square overflows would stop its parameter for good.
        if not (math.isfinite(loss) and norm < self.largest_norm):
            self.skipped += 1
            return {**figures, "reason": "gradient" if math.isfinite(loss) else "loss"}
        self._apply(rate, norm)
        return figures

    def _apply(self, rate: float, norm: float) -> None:
        if self.settings.clip_gradient is not None and norm > self.settings.clip_gradient:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(self.settings.clip_gradient / norm)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        for module in self.solver.modules():
            if callable(constrain := getattr(module, "constrain_", None)):
                constrain()

    def _stop_if_hopeless(self) -> None:
        allowed = self.settings.skips_allowed
        if self.skipped > allowed:
            raise TrainingError(
                f"training stopped after {self.updates} updates: {self.skipped} batches had a loss or gradient that "
                f"was not finite, and max_skipped allows {allowed}; use a smaller learning_rate, clip_gradient=1.0, "
                "smaller initial steps in the solver, or fewer iterations"
            )

    @property
    def _improved(self) -> bool | None:
        """Whether the best weights so far are trained ones; None without validation."""
        return None if self.settings.validate_every == 0 else self.best is not None and self.best.updates > 0

    def _warn_if_in_vain(self) -> None:
        if self._improved is not False or self.updates == 0 or not self.processes.is_main:
            return
        where = "the log of the result" if self.folder is None else str(self.folder.log)
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
        if validation.loss(weight) < best:  # a NaN never is
            self.best = validation
            self.best_weights = {name: tensor.clone() for name, tensor in self.solver.state_dict().items()}
        return validation

    def _record(self, figures: dict[str, Any], callback: Callback | None) -> bool:
        """Write a line of the log, with a validation where one is due; return whether the callback ends it."""
        record: dict[str, Any] = {"updates": self.updates, **figures, "skipped": self.skipped}
        if self._validates():
            validation = self._validate()
            record["validation_loss"] = validation.loss(self.settings.consistency_weight_at(self.updates))
            record["validation_value"] = validation.value
            record["validation_inconsistency"] = validation.inconsistency
            record["improved"] = self._improved
        now = time.perf_counter()
        if self.updates > self.marked_updates:
            record["updates_per_second"] = (self.updates - self.marked_updates) / (now - self.marked)
        self.marked, self.marked_updates = now, self.updates
        plain = self.log.write({**record, "seconds": self._seconds()})
        stop = callback is not None and self.processes.is_main and bool(callback(dict(plain)))
        return bool(self.processes.agree(int(stop)))

    def _configuration(self) -> dict[str, Any]:
        """Return what identifies the run; the mean value of the held-out batch tells families of one name apart."""
        start_value = f"{self.start_value:.4g}"
        return {
            "format": 1,
            "solver": to_config(self.solver),
            "family": {"name": self.family.name, "start_value": start_value},
            "dtype": str(self.parameters[0].dtype).removeprefix("torch."),
            "settings": self.settings.to_json(),
        }

    def _open(self, resume: bool) -> None:
        """Prepare the folder, and restore a run that is continued; a new one starts with a checkpoint of 0 updates."""
        if self.folder is None:
            return
        folder, configuration = self.folder, self._configuration()
        if self.processes.main_decides(lambda: folder.open(configuration, resume)):
            self._restore(folder)
            self._export(folder)
        else:
            self._save()
        self.log = Log(folder.log if self.processes.is_main else None, self.log.records)

    def _restore(self, folder: RunFolder) -> None:
        newest = newest_checkpoint(folder.checkpoints)
        if newest is None:
            raise FileError("out", f"{folder.checkpoints}, where there is no checkpoint", "a run to go on with")
        _, checkpoint = newest
        state = checkpoint.state
        self.solver.load_state_dict(dict(checkpoint.weights))
        load_optimiser(self.optimiser, checkpoint.optimiser)
        self.updates, self.skipped, self.seconds_before = state["updates"], state["skipped"], state["seconds"]
        self.best = None if state["best"] is None else Validation(**state["best"])
        self.best_weights = dict(checkpoint.best)
        self.log.records = read_log(folder.log, state["log_bytes"], state["log_sha256"])

    def _save(self) -> None:
        """Write a checkpoint and the best solver so far."""
        if self.folder is None or not self.processes.is_main:
            return
        state = {
            **self._configuration(),
            "updates": self.updates,
            "skipped": self.skipped,
            "seconds": self._seconds(),
            "log_bytes": self.log.position(),
            "log_sha256": self.log.digest(),
            "best": None if self.best is None else vars(self.best),
        }
        tensors = (self.solver.state_dict(), optimiser_tensors(self.optimiser), self.best_weights)
        write_checkpoint(self.folder.checkpoints, self.updates, Checkpoint(state, *tensors))
        self._export(self.folder)

    def _export(self, folder: RunFolder) -> None:
        if self.processes.is_main:
            done: dict[str, Any] = {"family": self.family.name, "updates": self.updates}
            done |= {"settings": self.settings.to_json(), "improved": self._improved}
            if self.best is not None:
                done["best_validation"] = vars(self.best)
            save(self.solver, folder.path, weights=self.best_weights or None, card={"training": done})

    def _result(self) -> TrainingResult:
        return TrainingResult(
            solver=self.solver,
            updates=self.updates,
            skipped=self.skipped,
            seconds=self._seconds(),
            best_validation=self.best,
            improved=self._improved,
            records=tuple(self.log.records),
        )


def _gradient_norm(parameters: list[nn.Parameter]) -> float:
    norms = [torch.linalg.vector_norm(parameter.grad) for parameter in parameters if parameter.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0
