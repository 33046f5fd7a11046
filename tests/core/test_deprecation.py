import warnings

import pytest

from lmd.core.deprecation import deprecated, say_deprecated


def test_it_is_said_once_and_the_function_works() -> None:
    @deprecated("twice", removal="9.0")
    def double(x: int) -> int:
        """Two of them."""
        return 2 * x

    say_deprecated.cache_clear()
    with pytest.warns(FutureWarning, match=r"double goes away in lmd 9\.0: use twice$"):
        assert double(3) == 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert double(4) == 8
    assert double.__doc__ == "Two of them."
