"""Fast gradient projection with learned numbers for TV denoising: recipes, and how far they get at each roughness."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from lmd.problems import Family, TVDenoising, TVDenoisingFamily, add_noise
from lmd.problems.tv import TVProblem
from lmd.solvers import FGP, LearnedFGP, Solver
from lmd.tasks.task import Recipe
from lmd.tasks.unrolled import PHOTOGRAPHS
from lmd.training.solved import SolvedFamily

CROPS = {"quick": 24, "standard": 64}
STEPS = {
    1: (
        (48, 22, 10, 5.1, 2.4, 1.1, 0.39, 0.11, 2.6e-2),
        (37, 17, 8.1, 3.9, 1.9, 0.76, 0.23, 4.7e-2, 8.4e-3),
        (46, 22, 11, 5.2, 2.5, 1.1, 0.38, 8.1e-2, 1.2e-2),
        (43, 21, 9.8, 4.8, 2.3, 0.96, 0.31, 5.0e-2, 7.4e-3),
    ),
    2: (
        (22, 9.4, 4.3, 2.1, 0.95, 0.39, 0.11, 2.3e-2, 4.1e-3),
        (17, 7.3, 3.4, 1.6, 0.7, 0.25, 5.2e-2, 5.5e-3, 5.9e-4),
        (21, 9.6, 4.4, 2.1, 0.96, 0.38, 9.6e-2, 8.1e-3, 5.7e-4),
        (20, 8.8, 4.1, 2, 0.88, 0.32, 6.4e-2, 3.1e-3, 2.4e-4),
    ),
    3: (
        (14, 5.8, 2.6, 1.2, 0.54, 0.21, 5.4e-2, 9.4e-3, 1.3e-3),
        (11, 4.5, 2, 0.92, 0.4, 0.13, 2.0e-2, 1.5e-3, 1.8e-4),
        (13, 6, 2.6, 1.2, 0.55, 0.19, 3.8e-2, 1.8e-3, 1.7e-4),
        (12, 5.5, 2.4, 1.1, 0.49, 0.16, 2.0e-2, 4.9e-4, 7.8e-5),
    ),
    4: (
        (9.4, 3.9, 1.8, 0.8, 0.35, 0.13, 2.8e-2, 3.8e-3, 4.1e-4),
        (7.3, 3.1, 1.3, 0.61, 0.26, 7.3e-2, 8.2e-3, 6.1e-4, 5.5e-5),
        (8.9, 4, 1.7, 0.82, 0.35, 0.12, 1.6e-2, 8.1e-4, 5.6e-5),
        (8.5, 3.7, 1.6, 0.75, 0.32, 9.8e-2, 6.2e-3, 3.7e-4, 4.1e-5),
    ),
    5: (
        (6.8, 2.9, 1.3, 0.6, 0.26, 8.7e-2, 1.8e-2, 2.0e-3, 1.9e-4),
        (5.3, 2.3, 0.99, 0.45, 0.18, 4.8e-2, 4.9e-3, 3.2e-4, 2.1e-5),
        (6.8, 3, 1.3, 0.59, 0.25, 8.1e-2, 8.7e-3, 3.3e-4, 1.1e-5),
        (6.3, 2.8, 1.2, 0.54, 0.22, 6.6e-2, 2.8e-3, 9.3e-5, 4.4e-6),
    ),
    6: (
        (5.7, 2.3, 1, 0.47, 0.2, 6.5e-2, 1.3e-2, 1.2e-3, 1.0e-4),
        (4.5, 1.8, 0.81, 0.35, 0.13, 3.3e-2, 3.1e-3, 1.7e-4, 1.1e-5),
        (5.4, 2.3, 1, 0.46, 0.19, 6.0e-2, 5.0e-3, 1.9e-4, 9.4e-6),
        (5.2, 2.1, 0.99, 0.43, 0.16, 4.3e-2, 1.3e-3, 5.1e-5, 2.5e-6),
    ),
    8: (
        (3.6, 1.6, 0.73, 0.33, 0.12, 3.8e-2, 6.2e-3, 4.8e-4, 2.5e-5),
        (2.9, 1.3, 0.56, 0.23, 8.1e-2, 1.6e-2, 1.2e-3, 5.6e-5, 3.1e-6),
        (3.6, 1.6, 0.7, 0.31, 0.12, 3.1e-2, 1.8e-3, 1.8e-5, 2.8e-6),
        (3.3, 1.5, 0.66, 0.28, 0.1, 1.8e-2, 3.0e-4, 1.3e-5, 8.3e-7),
    ),
    9: (
        (3.1, 1.4, 0.63, 0.28, 0.1, 3.0e-2, 4.7e-3, 3.4e-4, 1.5e-5),
        (2.4, 1.1, 0.48, 0.19, 6.8e-2, 1.2e-2, 9.9e-4, 4.0e-5, 2.2e-6),
        (3, 1.4, 0.6, 0.25, 9.8e-2, 2.2e-2, 1.4e-3, 2.4e-5, 1.2e-6),
        (2.8, 1.3, 0.57, 0.23, 8.6e-2, 1.5e-2, 2.2e-4, 2.6e-6, 7.8e-7),
    ),
    10: (
        (2.6, 1.2, 0.55, 0.23, 8.5e-2, 2.4e-2, 3.6e-3, 2.2e-4, 1.0e-5),
        (2, 0.96, 0.42, 0.16, 5.5e-2, 9.9e-3, 7.5e-4, 2.6e-5, 1.4e-6),
        (2.5, 1.2, 0.52, 0.21, 8.2e-2, 1.7e-2, 1.0e-3, 1.9e-5, 1.3e-6),
        (2.4, 1.2, 0.5, 0.18, 6.9e-2, 1.2e-2, 1.3e-4, 2.6e-6, 7.8e-7),
    ),
    13: (
        (1.9, 0.88, 0.39, 0.15, 5.4e-2, 1.3e-2, 5.0e-4, 5.3e-6, 7.2e-8),
        (1.5, 0.68, 0.29, 0.1, 2.6e-2, 5.6e-3, 1.3e-4, 1.3e-6, 2.3e-8),
        (1.9, 0.83, 0.37, 0.13, 4.6e-2, 9.6e-3, 3.8e-4, 6.3e-6, 1.0e-6),
        (1.8, 0.79, 0.35, 0.12, 3.1e-2, 7.1e-3, 4.2e-5, 1.1e-6, 7.8e-7),
    ),
    21: (
        (1.1, 0.49, 0.19, 5.9e-2, 1.7e-2, 3.2e-3, 4.4e-5, 2.3e-7, 1.1e-9),
        (0.87, 0.36, 0.12, 2.9e-2, 8.5e-3, 1.5e-3, 1.7e-5, 1.5e-7, 1.6e-8),
        (1, 0.46, 0.17, 4.6e-2, 1.4e-2, 3.5e-3, 2.0e-5, 1.1e-6, 7.3e-7),
        (1, 0.44, 0.16, 3.7e-2, 9.1e-3, 1.3e-3, 5.6e-6, 6.6e-7, 7.6e-7),
    ),
    34: (
        (0.7, 0.22, 6.6e-2, 2.1e-2, 5.9e-3, 4.5e-4, 1.2e-6, 7.9e-9, 3.1e-11),
        (0.53, 0.15, 3.7e-2, 1.1e-2, 2.8e-3, 2.2e-4, 1.4e-6, 4.1e-8, 1.6e-8),
        (0.67, 0.2, 5.8e-2, 1.7e-2, 4.6e-3, 8.7e-4, 1.0e-5, 6.2e-7, 7.3e-7),
        (0.63, 0.18, 4.6e-2, 1.2e-2, 2.9e-3, 1.7e-4, 1.3e-6, 6.5e-7, 7.6e-7),
    ),
    55: (
        (0.34, 0.1, 2.5e-2, 7.9e-3, 1.5e-3, 6.4e-5, 4.0e-8, 2.8e-11, 1.9e-11),
        (0.22, 5.9e-2, 1.4e-2, 4.4e-3, 9.8e-4, 2.7e-5, 4.2e-7, 1.8e-8, 1.6e-8),
        (0.32, 9.4e-2, 2.3e-2, 6.5e-3, 1.5e-3, 2.1e-4, 1.7e-6, 6.1e-7, 7.3e-7),
        (0.28, 7.6e-2, 1.5e-2, 4.0e-3, 6.8e-4, 3.6e-5, 5.0e-7, 6.5e-7, 7.6e-7),
    ),
    89: (
        (0.41, 7.0e-2, 1.5e-2, 3.8e-3, 3.2e-4, 7.9e-6, 3.0e-9, 2.0e-11, 1.9e-11),
        (0.25, 3.9e-2, 8.7e-3, 2.2e-3, 3.9e-4, 8.4e-6, 8.4e-8, 1.5e-8, 1.6e-8),
        (0.3, 6.0e-2, 1.3e-2, 3.1e-3, 1.0e-3, 2.5e-5, 8.6e-7, 6.1e-7, 7.3e-7),
        (0.29, 4.7e-2, 8.5e-3, 1.9e-3, 5.0e-4, 1.5e-5, 4.8e-7, 6.5e-7, 7.6e-7),
    ),
    144: (
        (0.11, 1.8e-2, 4.5e-3, 9.9e-4, 4.1e-5, 1.2e-6, 1.1e-10, 1.9e-11, 1.9e-11),
        (7.3e-2, 1.0e-2, 2.6e-3, 6.3e-4, 7.3e-5, 2.4e-6, 2.7e-8, 1.5e-8, 1.5e-8),
        (8.7e-2, 1.5e-2, 4.5e-3, 9.0e-4, 2.5e-4, 1.2e-5, 4.8e-7, 6.1e-7, 7.3e-7),
        (7.4e-2, 1.1e-2, 2.6e-3, 5.1e-4, 5.1e-5, 3.9e-6, 4.7e-7, 6.5e-7, 7.6e-7),
    ),
}
SCALES = {
    4: (
        (0.78, 0.4, 0.29, 0.21, 0.14, 7.0e-2, 2.6e-2, 4.7e-3, 5.8e-4),
        (0.59, 0.32, 0.21, 0.12, 7.4e-2, 3.5e-2, 8.0e-3, 6.7e-4, 5.8e-5),
        (0.66, 0.35, 0.24, 0.16, 9.6e-2, 4.7e-2, 1.2e-2, 6.4e-4, 1.7e-5),
        (0.6, 0.29, 0.19, 0.11, 5.8e-2, 2.6e-2, 3.8e-3, 1.2e-4, 3.2e-6),
    ),
    5: (
        (0.49, 0.28, 0.21, 0.14, 8.8e-2, 4.5e-2, 1.6e-2, 2.6e-3, 2.6e-4),
        (0.37, 0.22, 0.14, 8.2e-2, 4.5e-2, 2.2e-2, 4.9e-3, 3.8e-4, 3.0e-5),
        (0.42, 0.24, 0.17, 0.11, 6.4e-2, 2.9e-2, 6.6e-3, 4.3e-4, 1.4e-5),
        (0.4, 0.2, 0.13, 7.6e-2, 3.6e-2, 1.4e-2, 1.9e-3, 8.3e-5, 3.5e-6),
    ),
    6: (
        (0.34, 0.21, 0.16, 0.1, 6.3e-2, 3.3e-2, 1.1e-2, 1.5e-3, 1.2e-4),
        (0.26, 0.16, 0.1, 6.0e-2, 3.2e-2, 1.6e-2, 3.1e-3, 2.0e-4, 1.3e-5),
        (0.3, 0.18, 0.13, 8.4e-2, 4.5e-2, 2.1e-2, 4.0e-3, 1.8e-4, 7.2e-6),
        (0.29, 0.15, 9.2e-2, 5.5e-2, 2.5e-2, 9.2e-3, 9.4e-4, 3.9e-5, 1.6e-6),
    ),
    7: (
        (0.25, 0.16, 0.12, 8.0e-2, 4.8e-2, 2.5e-2, 7.6e-3, 8.7e-4, 5.5e-5),
        (0.19, 0.12, 7.7e-2, 4.5e-2, 2.3e-2, 1.2e-2, 1.9e-3, 1.1e-4, 6.1e-6),
        (0.23, 0.14, 0.1, 6.5e-2, 3.5e-2, 1.5e-2, 2.5e-3, 2.2e-5, 3.3e-6),
        (0.22, 0.11, 6.8e-2, 4.2e-2, 1.9e-2, 6.4e-3, 4.9e-4, 1.2e-5, 9.7e-7),
    ),
    9: (
        (0.15, 0.11, 8.2e-2, 5.2e-2, 3.1e-2, 1.5e-2, 4.5e-3, 4.0e-4, 2.0e-5),
        (0.11, 8.0e-2, 4.8e-2, 2.9e-2, 1.4e-2, 6.9e-3, 9.7e-4, 4.1e-5, 2.0e-6),
        (0.14, 9.7e-2, 6.8e-2, 4.3e-2, 2.3e-2, 9.1e-3, 1.2e-3, 3.9e-5, 1.5e-6),
        (0.14, 7.4e-2, 4.1e-2, 2.6e-2, 1.1e-2, 4.0e-3, 1.8e-4, 4.3e-6, 7.9e-7),
    ),
    13: (
        (8.2e-2, 6.3e-2, 4.3e-2, 2.7e-2, 1.6e-2, 5.5e-3, 4.8e-4, 8.8e-6, 2.0e-7),
        (6.3e-2, 4.0e-2, 2.3e-2, 1.4e-2, 7.0e-3, 3.1e-3, 1.4e-4, 1.5e-6, 2.7e-8),
        (7.4e-2, 5.3e-2, 3.7e-2, 2.2e-2, 1.2e-2, 4.0e-3, 3.4e-4, 4.7e-6, 8.7e-7),
        (6.6e-2, 3.9e-2, 2.1e-2, 1.2e-2, 5.2e-3, 1.7e-3, 3.8e-5, 9.5e-7, 7.7e-7),
    ),
    19: (
        (4.4e-2, 3.1e-2, 2.2e-2, 1.3e-2, 6.6e-3, 1.8e-3, 6.7e-5, 8.6e-7, 5.5e-9),
        (3.4e-2, 2.0e-2, 1.2e-2, 6.9e-3, 3.3e-3, 1.2e-3, 2.6e-5, 3.1e-7, 1.7e-8),
        (4.0e-2, 2.9e-2, 1.8e-2, 1.2e-2, 5.6e-3, 1.7e-3, 1.9e-5, 1.5e-6, 7.4e-7),
        (3.5e-2, 2.0e-2, 1.0e-2, 5.7e-3, 2.5e-3, 7.6e-4, 8.6e-6, 6.8e-7, 7.7e-7),
    ),
    28: (
        (2.0e-2, 1.6e-2, 1.0e-2, 5.4e-3, 2.9e-3, 4.8e-4, 8.1e-6, 4.5e-8, 9.7e-11),
        (1.5e-2, 9.3e-3, 5.5e-3, 3.1e-3, 1.4e-3, 3.4e-4, 5.0e-6, 8.1e-8, 1.6e-8),
        (1.9e-2, 1.4e-2, 9.4e-3, 5.2e-3, 2.7e-3, 8.0e-4, 2.0e-5, 6.6e-7, 7.3e-7),
        (1.5e-2, 8.9e-3, 4.6e-3, 2.5e-3, 1.0e-3, 2.3e-4, 2.0e-6, 6.5e-7, 7.6e-7),
    ),
    42: (
        (7.6e-3, 5.8e-3, 3.8e-3, 2.6e-3, 7.1e-4, 8.5e-5, 2.1e-7, 1.4e-9, 1.9e-11),
        (7.1e-3, 4.5e-3, 2.4e-3, 1.2e-3, 5.8e-4, 7.0e-5, 7.2e-7, 2.9e-8, 1.6e-8),
        (8.4e-3, 6.9e-3, 4.3e-3, 2.7e-3, 1.1e-3, 3.0e-4, 4.5e-6, 6.1e-7, 7.3e-7),
        (7.4e-3, 4.5e-3, 1.8e-3, 1.1e-3, 3.8e-4, 3.7e-5, 6.7e-7, 6.5e-7, 7.6e-7),
    ),
    52: (
        (4.5e-3, 3.8e-3, 2.3e-3, 1.5e-3, 3.2e-4, 2.3e-5, 7.5e-8, 8.4e-11, 1.9e-11),
        (4.6e-3, 3.0e-3, 1.9e-3, 7.3e-4, 2.7e-4, 3.0e-5, 4.2e-7, 2.3e-8, 1.6e-8),
        (5.7e-3, 4.8e-3, 3.2e-3, 1.8e-3, 6.7e-4, 2.0e-4, 1.9e-6, 6.1e-7, 7.3e-7),
        (3.7e-3, 2.9e-3, 1.3e-3, 6.5e-4, 2.2e-4, 3.5e-5, 4.9e-7, 6.5e-7, 7.6e-7),
    ),
    64: (
        (4.2e-3, 3.3e-3, 2.0e-3, 9.4e-4, 1.0e-4, 1.3e-5, 8.0e-9, 3.1e-11, 1.9e-11),
        (4.4e-3, 2.3e-3, 1.2e-3, 4.8e-4, 1.7e-4, 1.7e-5, 1.8e-7, 1.7e-8, 1.6e-8),
        (4.1e-3, 3.7e-3, 2.3e-3, 1.3e-3, 5.1e-4, 2.9e-5, 1.1e-6, 6.1e-7, 7.3e-7),
        (2.9e-3, 2.0e-3, 9.2e-4, 4.5e-4, 1.4e-4, 2.0e-5, 4.8e-7, 6.5e-7, 7.6e-7),
    ),
    80: (
        (4.1e-3, 1.9e-3, 2.0e-3, 7.7e-4, 8.2e-5, 8.5e-6, 5.8e-9, 2.8e-11, 1.9e-11),
        (4.4e-3, 2.1e-3, 1.6e-3, 3.4e-4, 1.5e-4, 1.4e-5, 1.7e-7, 1.6e-8, 1.6e-8),
        (3.9e-3, 3.5e-3, 2.5e-3, 1.1e-3, 6.5e-4, 2.2e-5, 8.5e-7, 6.1e-7, 7.3e-7),
        (2.7e-3, 1.8e-3, 9.9e-4, 3.6e-4, 1.7e-4, 1.5e-5, 4.8e-7, 6.5e-7, 7.6e-7),
    ),
    100: (
        (1.9e-3, 9.4e-4, 5.1e-4, 1.5e-4, 1.5e-5, 2.7e-6, 6.2e-10, 1.9e-11, 1.9e-11),
        (2.2e-3, 1.0e-3, 4.8e-4, 1.6e-4, 4.8e-5, 5.4e-6, 6.9e-8, 1.5e-8, 1.6e-8),
        (2.4e-3, 2.2e-3, 1.3e-3, 5.6e-4, 2.2e-4, 1.6e-5, 6.2e-7, 6.1e-7, 7.3e-7),
        (1.5e-3, 1.0e-3, 4.0e-4, 1.6e-4, 4.2e-5, 8.5e-6, 4.7e-7, 6.5e-7, 7.6e-7),
    ),
    120: (
        (1.6e-3, 4.7e-4, 3.9e-4, 1.3e-4, 1.1e-5, 2.6e-6, 1.6e-10, 1.9e-11, 1.9e-11),
        (2.6e-3, 7.5e-4, 3.4e-4, 1.1e-4, 3.4e-5, 5.1e-6, 3.7e-8, 1.5e-8, 1.6e-8),
        (2.3e-3, 1.7e-3, 1.1e-3, 4.3e-4, 1.7e-4, 1.4e-5, 5.0e-7, 6.1e-7, 7.3e-7),
        (1.2e-3, 7.4e-4, 3.1e-4, 1.2e-4, 4.2e-5, 4.6e-6, 4.7e-7, 6.5e-7, 7.6e-7),
    ),
    150: (
        (3.9e-4, 4.2e-4, 1.7e-4, 2.3e-5, 5.2e-6, 3.8e-7, 1.0e-10, 1.9e-11, 1.9e-11),
        (8.5e-4, 5.2e-4, 1.6e-4, 7.2e-5, 2.6e-5, 3.6e-6, 3.2e-8, 1.4e-8, 1.5e-8),
        (1.0e-3, 1.2e-3, 6.6e-4, 2.8e-4, 4.0e-5, 1.6e-5, 4.9e-7, 6.1e-7, 7.3e-7),
        (6.5e-4, 4.7e-4, 2.0e-4, 7.7e-5, 2.8e-5, 3.3e-6, 4.7e-7, 6.5e-7, 7.6e-7),
    ),
    180: (
        (1.7e-4, 1.4e-4, 9.9e-5, 1.5e-5, 1.2e-6, 4.9e-8, 7.9e-11, 1.9e-11, 1.9e-11),
        (4.8e-4, 3.2e-4, 8.0e-5, 3.8e-5, 1.3e-5, 1.6e-6, 1.7e-8, 1.4e-8, 1.5e-8),
        (8.1e-4, 8.3e-4, 4.3e-4, 1.8e-4, 2.8e-5, 8.7e-6, 4.7e-7, 6.1e-7, 7.3e-7),
        (4.2e-4, 3.1e-4, 9.8e-5, 4.4e-5, 2.2e-5, 2.2e-6, 4.7e-7, 6.5e-7, 7.6e-7),
    ),
    225: (
        (1.1e-4, 5.2e-5, 1.7e-5, 6.6e-6, 2.4e-7, 2.7e-9, 4.0e-11, 1.9e-11, 1.9e-11),
        (4.1e-4, 1.1e-4, 5.2e-5, 2.4e-5, 6.9e-6, 9.7e-7, 1.4e-8, 1.4e-8, 1.5e-8),
        (6.9e-4, 6.2e-4, 2.6e-4, 2.9e-5, 1.6e-5, 5.3e-6, 4.6e-7, 6.1e-7, 7.3e-7),
        (4.1e-4, 2.3e-4, 5.6e-5, 3.8e-5, 9.7e-6, 1.4e-6, 4.6e-7, 6.5e-7, 7.6e-7),
    ),
}
"""By the number of iterations, for those that begin at p = 0 and those that begin on coarser grids, in the anisotropic
and in the isotropic form, and in both with three coupled channels: the relative gap that is proven of half of the
held-out images of 96 x 96 pixels, or, from 13 iterations on, of two in three of them drawn flat (`lmd.problems.flat`;
isotropic, of half of them; coupled ones as they are), at each roughness that `LearnedFGP` has numbers for and halfway
between, where numbers are interpolated and good for less (benchmarks/reach.py). The others need a few iterations
more."""

WEIGHTS = (0.02, 1.5)


class AllWeights(TVDenoisingFamily):
    """Weights drawn evenly in their logarithm, so that every roughness is met as often."""

    def sample(self, batch: int, generator: torch.Generator) -> tuple[TVProblem, Tensor]:
        images = self.sample_images(batch, generator)
        noisy = add_noise(images, self._uniform(self.noise, batch, generator), generator)
        logarithm = self._uniform((math.log(self.weight[0]), math.log(self.weight[1])), batch, generator)
        return TVDenoising(noisy, logarithm.exp(), self.isotropic, self.halved), noisy


def family(preset: str) -> Family:
    """Half of the images twice as large: large flat pieces need the most iterations."""
    images = PHOTOGRAPHS.train(preset)
    doubled = interpolate(images.float(), scale_factor=2, mode="bicubic").round().clamp(0, 255).byte()
    return AllWeights([*images, *doubled], noise=(0.0, 0.22), crop=CROPS[preset], weight=WEIGHTS)


FLAT = {False: 34, True: 42}
"""From so many iterations on, from p = 0 and from coarser grids, a solve ends with x drawn flat, as often as not: what
counts then is the dual point, so that numbers are learned for its gap to the solution too."""

POOLS = {"quick": 60, "standard": 3000}
"""Instances that are drawn and solved before such numbers are learned."""


def solved_family(preset: str) -> Family:
    """The same with solutions."""
    return SolvedFamily(family(preset), POOLS[preset], FGP(restart=True), iterations=1, finish=_solution)


def _solution(problem: TVProblem, x: Tensor) -> Tensor:
    found = FGP(restart=True).finish(problem, None, 1e-8, 10_000)
    return x if found is None else found.x


def _settings(horizon: int, coarse: bool) -> dict[str, dict[str, Any]]:
    """Many iterations are sensitive to their numbers and want a smaller rate. Those from coarser grids, and those for
    two gaps, gain from more updates at half of it."""
    both = horizon >= FLAT[coarse]
    longer = coarse or both
    rate = 0.1 if horizon < 60 else 2.4 / horizon
    shared: dict[str, Any] = {
        "objective": "both duality gaps" if both else "duality gap",
        "value_weights": "last",
        "learning_rate": rate / 2 if longer else rate,
        "schedule": "cosine",
        "clip_gradient": 20.0,
    }
    updates = 3000 if both else 2000 if coarse else 1000 if horizon >= 8 else 400
    larger = {"updates": updates, "batch": 8, "warmup": 20, "validation_batch": 48, "checkpoint_every": 100}
    return {"quick": {**shared, "updates": 40, "batch": 4}, "standard": {**shared, **larger}}


def _learned(horizon: int, coarse: bool, seed: int) -> Solver[Any]:
    return LearnedFGP(horizon, coarse)


def _recipe(horizon: int, coarse: bool) -> Recipe:
    start = ", begun on coarser grids" if coarse else ""
    return Recipe(
        iterations=horizon,
        form="scales" if coarse else "steps",
        rung=True,
        title=f"fast gradient projection of {horizon} iterations with learned step-sizes and momenta{start}",
        solver=functools.partial(_learned, horizon, coarse),
        family=solved_family if horizon >= FLAT[coarse] else family,
        source=PHOTOGRAPHS,
        settings=_settings(horizon, coarse),
        weak="Only the last trained iterate is good: `lmd.solve` takes the horizon that a tolerance needs.",
    )


RECIPES = (*(_recipe(horizon, False) for horizon in STEPS), *(_recipe(horizon, True) for horizon in SCALES))
