"""Learning a solver on a family: the unrolled loss, schedules, checkpoints, distribution over processes."""
