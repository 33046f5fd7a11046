"""Convert mirrors, steps and solvers to JSON, as a type name and constructor arguments, and build them again.

A configuration can only name registered classes, so it runs no code outside lmd and the modules already imported.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any, ClassVar

from lmd.errors import InputError

SOLVERS = ("lmd.solvers", "lmd.solvers.classical.qp_interior_point", "lmd.solvers.learned.gradient")
HOMES = ("lmd.mirrors", *SOLVERS, "lmd.guarantees")  # imported if a name is not registered yet


class Configurable:
    """A class whose instances can be rebuilt from `type(self).__name__` and `config()`.

    The constructor stores each argument as an attribute of the same name; otherwise the class overrides `config`.
    Learned parameters and large tensors belong to the module's `state_dict`.
    """

    registry: ClassVar[dict[str, type[Configurable]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = Configurable.registry.get(cls.__name__)
        if taken is not None and taken.__module__.startswith("lmd.") and taken.__module__ != cls.__module__:
            accepted = f"a name that lmd does not use itself ({taken.__module__}); a saved solver would mix them up"
            raise InputError("class", cls.__name__, accepted)
        Configurable.registry[cls.__name__] = cls

    def config(self) -> dict[str, Any]:
        """Return the arguments of the constructor by name; values are JSON values or `Configurable`."""
        if type(self).__init__ is object.__init__:
            return {}
        given = inspect.signature(type(self)).parameters.values()
        named = [each.name for each in given if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if missing := [name for name in named if not hasattr(self, name)]:
            accepted = "an attribute for each argument of its constructor, or a config() of its own"
            raise InputError(f"class {type(self).__name__}", f"no attribute {missing[0]}", accepted)
        return {name: getattr(self, name) for name in named}


def to_config(item: Configurable) -> dict[str, Any]:
    """Return `item` as JSON values `{"type": name, argument: value, ...}`, nested if arguments are `Configurable`."""
    return {"type": type(item).__name__, **{key: _write(value) for key, value in item.config().items()}}


def _write(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_write(entry) for entry in value]
    return to_config(value) if isinstance(value, Configurable) else value


def from_config(config: object) -> Configurable:
    """Build an object from the result of `to_config`; its parameters still have to be loaded."""
    if not isinstance(config, dict) or not isinstance(config.get("type"), str):
        raise InputError("configuration", f"{type(config).__name__} {config!r:.60}", 'an object with a "type"')
    name = config["type"]
    if name not in Configurable.registry:
        for home in HOMES:
            importlib.import_module(home)
    if name not in Configurable.registry:
        raise InputError("configuration type", repr(name), "a class that lmd or an imported module of yours defines")
    arguments = {key: _read(value) for key, value in config.items() if key != "type"}
    try:
        return Configurable.registry[name](**arguments)
    except TypeError as error:
        raise InputError(f"configuration of {name}", error, "the arguments of its constructor") from None


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(entry) for entry in value]
    return from_config(value) if isinstance(value, dict) and "type" in value else value
