from lmd.mirrors import Entropic
from lmd.mirrors.conformance import MirrorConformance
from lmd.problems.simplex import uniform_simplex


class TestEntropic(MirrorConformance):
    def make_mirror(self, dtype):
        return Entropic()

    def points(self, batch, dtype, generator):
        return uniform_simplex(batch, 4, generator, dtype)
