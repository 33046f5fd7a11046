"""Picture files in, picture files out: what `lmd solve` is made of."""

from lmd.pictures.solve import PictureSolver, Proof, Summary, solve_file

__all__ = ["PictureSolver", "Proof", "Summary", "solve_file"]
