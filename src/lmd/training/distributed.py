"""Training over several processes.

Under `torchrun` every process draws the same global batch and takes its own slice, so the numbers are those of one
process up to rounding. Gradients are averaged by DistributedDataParallel.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn

from lmd.errors import InputError, TrainingError
from lmd.problems.base import Problem


@dataclass(frozen=True)
class Processes:
    """This process among those of the run; alone it is rank 0 of 1."""

    device: torch.device  # where this process works
    rank: int = 0
    world: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def check_batch(self, argument: str, batch: int) -> None:
        """Raise unless a batch can be shared equally."""
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
        # Each update records the same graph; saying so also allows parameters that no iteration uses.
        return nn.parallel.DistributedDataParallel(loss, static_graph=True)

    def mean(self, numbers: Tensor) -> Tensor:
        """Return the mean of each number over the processes."""
        if self.world > 1:
            distributed.all_reduce(numbers)
            numbers = numbers / self.world
        return numbers

    def agree(self, number: int) -> int:
        """Return the number of the main process."""
        if self.world == 1:
            return number
        message = torch.tensor(number, dtype=torch.int64, device=self.device)
        distributed.broadcast(message, src=0)
        return int(message)

    def main_decides(self, decide: Callable[[], int]) -> int:
        """Return what `decide` returns (0 or more) in the main process; if it raises there, all stop."""
        answer, error = -1, None
        if self.is_main:
            try:
                answer = decide()
            except Exception as problem:
                error = problem
        answer = self.agree(answer)
        if error is not None:
            raise error
        if answer < 0:
            raise TrainingError("the main process could not start the run; its message says why")
        return answer


def join_processes(device: torch.device) -> Processes:
    """Return the place of this process in the run of `torchrun`, or alone."""
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
