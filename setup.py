"""The compiled code; everything else about the package is in pyproject.toml."""

from pathlib import Path

from setuptools import Extension, setup

FOLDERS = [Path("src/lmd/kernels"), Path("src/lmd/tv")]
SOURCES = [str(path) for folder in FOLDERS for path in sorted(folder.glob("*.c"))]
HEADERS = [str(path) for folder in FOLDERS for path in sorted(folder.glob("*.h"))]
OPTIONS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"]
AVX2 = ["-mavx2", "-mfma"]
AVX512 = ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"]


def compiled(name: str, options: list[str]) -> Extension:
    """Optional: without a compiler, or where it lacks these options, PyTorch does the work."""
    return Extension(
        f"lmd.kernels.{name}",
        SOURCES,
        depends=HEADERS,
        include_dirs=[str(folder) for folder in FOLDERS],
        define_macros=[("MODULE", name)],
        extra_compile_args=[*OPTIONS, *options],
        extra_link_args=["-fopenmp"],
        optional=True,
    )


setup(ext_modules=[compiled("_native", []), compiled("_native_avx2", AVX2), compiled("_native_avx512", AVX512)])
