import sys
from pathlib import Path

import pytest

from lmd.core.files import cache_folder


def test_the_cache_is_where_lmd_cache_says(monkeypatch):
    monkeypatch.setenv("LMD_CACHE", "~/elsewhere")
    assert cache_folder() == Path.home() / "elsewhere"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="XDG_CACHE_HOME is a matter of Linux")
def test_the_cache_is_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.delenv("LMD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "lmd"
    assert not (tmp_path / "lmd").exists()
