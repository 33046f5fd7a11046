"""Arrays and picture files in, arrays and picture files out: what `lmd.denoise` and `lmd solve` are made of."""

from lmd.pictures.solve import PictureSolver, Proof, Summary, solve_file

__all__ = ["PictureSolver", "Proof", "Summary", "solve_file"]
