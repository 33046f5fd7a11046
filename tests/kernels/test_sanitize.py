"""`make sanitize` leaves nothing out; CI runs it, as it takes a minute."""

import re
from pathlib import Path

import lmd

HERE = Path(__file__).parent


def test_every_function_that_python_calls_is_called() -> None:
    sources = [source.read_text() for source in Path(lmd.__file__).parent.glob("*/*.c")]
    exported = [name for source in sources for name in re.findall(r"^int (lmd_\w+)\(", source, re.MULTILINE)]
    driver = "".join(path.read_text() for path in HERE.glob("sanitize*.c"))
    assert len(exported) == 9
    assert [name for name in exported if f"{name}(" not in driver] == []


def test_every_build_is_sanitized_with_its_own_options() -> None:
    setup = (HERE.parents[1] / "setup.py").read_text()
    script = (HERE / "sanitize.sh").read_text()
    for build in ("AVX2", "AVX512"):
        (line,) = re.findall(rf"^{build} = \[(.*)\]$", setup, re.MULTILINE)
        assert " ".join(re.findall(r'"([^"]+)"', line)) in script
