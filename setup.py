"""The compiled kernels; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

SOURCES = ["src/lmd/kernels/tv.c"]
OPTIONS = ["-O3", "-fno-math-errno", "-fopenmp"]

# Both are optional: without a compiler, or where it lacks these options, PyTorch does the work.
setup(
    ext_modules=[
        Extension("lmd.kernels._tv", SOURCES, extra_compile_args=OPTIONS, extra_link_args=["-fopenmp"], optional=True),
        Extension(
            "lmd.kernels._tv_avx2",
            SOURCES,
            extra_compile_args=[*OPTIONS, "-mavx2", "-mfma"],
            extra_link_args=["-fopenmp"],
            optional=True,
        ),
    ]
)
