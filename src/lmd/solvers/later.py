"""Records whose fields are made when they are first asked for."""

from __future__ import annotations

from typing import Any

from typing_extensions import Self


class Later:
    """What a record inherits that may be there before its fields are."""

    @classmethod
    def later(cls, maker: Any, **known: Any) -> Self:
        """One whose other fields are made when they are first asked for, by the maker's methods of their names."""
        record = cls.__new__(cls)
        vars(record).update(known, _maker=maker)
        return record

    def __getattr__(self, name: str) -> Any:
        """A field that is not there yet."""
        make = getattr(vars(self).get("_maker"), name, None)
        if make is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return vars(self).setdefault(name, make(self))
