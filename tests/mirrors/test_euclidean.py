import torch

from lmd.mirrors import Euclidean, EuclideanBox, EuclideanSimplex
from lmd.mirrors.conformance import MirrorConformance
from lmd.problems.simplex import uniform_simplex


class TestEuclidean(MirrorConformance):
    def make_mirror(self, dtype):
        return Euclidean()

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


class TestEuclideanOnImages(TestEuclidean):
    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, 4, 5, dtype=dtype, generator=generator)


class TestEuclideanBox(MirrorConformance):
    def make_mirror(self, dtype):
        return EuclideanBox(-1.0, 2.0)

    def points(self, batch, dtype, generator):
        return 3 * torch.rand(batch, 2, 4, dtype=dtype, generator=generator) - 1


class TestEuclideanSimplex(MirrorConformance):
    def make_mirror(self, dtype):
        return EuclideanSimplex()

    def points(self, batch, dtype, generator):
        return uniform_simplex(batch, 4, generator, dtype)
