"""`lmd bench`: every solver and every peer on the same instances from the same start, per iteration and per second.

plan         what to run, as the tasks have it, and what came of it
measuring    quality of iterates against certified answers, untimed, and tuning on other instances
timing       seconds to a quality, interleaved and repeated
scheduling   the order of all this
report       JSON and figures
"""

from lmd.reproduction.bench.plan import Bench, Plan
from lmd.reproduction.bench.scheduling import run_bench

__all__ = ["Bench", "Plan", "run_bench"]
