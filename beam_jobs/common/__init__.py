"""Code that all packages share: processes, threads, text, settings and HTML pages.

With `lazy_names`, the public names of a package load their module at the first access: a program that uses one name of
a package loads only the libraries of that name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def targets(modules: Mapping[str, Sequence[str]], aliases: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Returns public name -> module and the name in that module; see `lazy_names` for the arguments."""
    return {name: (module, name) for module, names in modules.items() for name in names} | dict(aliases)


def lazy_names(
    package: dict[str, Any], modules: Mapping[str, Sequence[str]], aliases: Mapping[str, tuple[str, str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package.

    Args:
      package: `globals()` of the package; loaded names are added to it.
      modules: module, relative to the package -> its public names.
      aliases: public name -> module and the name in that module, where the names differ.
    """
    public_names = targets(modules, aliases)
    package_name = package["__name__"]

    def get(name: str) -> object:
        """Loads a public name at the first access."""
        if name not in public_names:
            raise AttributeError(f"module {package_name!r} has no attribute {name!r}")
        module, attribute = public_names[name]
        package[name] = value = getattr(importlib.import_module(f"{package_name}.{module}"), attribute)
        return value

    def names() -> list[str]:
        """Returns all public names, whether loaded or not, and all other names of the package."""
        return sorted({*package, *package["__all__"]})

    return get, names
