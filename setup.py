"""The compiled kernels; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

PARTS = ("tv", "loop", "saddle", "unrolled", "volume", "second", "blur", "interior", "module")
SOURCES = [f"src/lmd/kernels/{name}.c" for name in PARTS]
INCLUDED = ("calls", "follow", "look", "loop", "motion", "regions", "rows", "saddle", "threads")
HEADERS = [f"src/lmd/kernels/{name}.h" for name in INCLUDED]
OPTIONS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"]


def compiled(name: str, options: list[str]) -> Extension:
    """Optional: without a compiler, or where it lacks these options, PyTorch does the work."""
    return Extension(
        f"lmd.kernels.{name}",
        SOURCES,
        depends=HEADERS,
        define_macros=[("MODULE", name)],
        extra_compile_args=[*OPTIONS, *options],
        extra_link_args=["-fopenmp"],
        optional=True,
    )


setup(ext_modules=[compiled("_tv", []), compiled("_tv_avx2", AVX2), compiled("_tv_avx512", AVX512)])
