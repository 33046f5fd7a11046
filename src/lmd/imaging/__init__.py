"""Functions for arrays and for picture files: `lmd.denoise` and `lmd solve`."""

from lmd.imaging.files import PictureSolver, solve_file, solve_many
from lmd.imaging.functions import Info

__all__ = ["Info", "PictureSolver", "solve_file", "solve_many"]
