import torch

from lmd.mirrors import DiagonalQuadratic, Quadratic
from lmd.mirrors.conformance import MirrorConformance


def random_matrix(dimension, dtype, seed=3):
    square = torch.randn(dimension, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (square @ square.T + torch.eye(dimension)).to(dtype)


class TestQuadratic(MirrorConformance):
    def make_mirror(self, dtype):
        return Quadratic.from_matrix(random_matrix(4, dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 4, dtype=dtype, generator=generator)


class TestDiagonalQuadratic(MirrorConformance):
    def make_mirror(self, dtype):
        return DiagonalQuadratic(3, diagonal=torch.tensor([0.1, 1.0, 20.0], dtype=dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)
