"""What every part uses and no part owns: processes, threads, text, settings and pages.

`lazy_names` makes the public names of a package load their module when they are first asked for: a program that needs
one name of a package pays for the libraries of that name alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def places(modules: Mapping[str, Sequence[str]], aliases: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Returns module and name there, by the public name; see `lazy_names`."""
    return {name: (module, name) for module, names in modules.items() for name in names} | dict(aliases)


def lazy_names(
    package: dict[str, Any], modules: Mapping[str, Sequence[str]], aliases: Mapping[str, tuple[str, str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package.

    Args:
      package: `globals()` of the package, where loaded names are kept.
      modules: Public names by the module, relative to the package, that holds them.
      aliases: Module and name there, by the public name, where the two differ.
    """
    found = places(modules, aliases)
    name_of_package = package["__name__"]

    def get(name: str) -> object:
        """Loads a public name when it is first asked for."""
        if name not in found:
            raise AttributeError(f"module {name_of_package!r} has no attribute {name!r}")
        module, attribute = found[name]
        package[name] = value = getattr(importlib.import_module(f"{name_of_package}.{module}"), attribute)
        return value

    def names() -> list[str]:
        """Returns the public names, loaded or not, and what else is there."""
        return sorted({*package, *package["__all__"]})

    return get, names
