"""Digests of source code: of Feedline, and of the functions of users. The code is not imported or executed."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")
_ROOT = Path(__file__).parent.parent.parent


@functools.cache
def code_version() -> str:
    """Returns the release and a digest of every file of the four packages, such as `0.1.0+3f9c0d1e`."""
    hasher = hashlib.sha256()
    for package in PACKAGES:
        for path in sorted((_ROOT / package).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            hasher.update(path.relative_to(_ROOT).as_posix().encode())
            hasher.update(path.read_bytes())
    return f"{metadata.version('feedline')}+{hasher.hexdigest()[:8]}"


def source_digest(path: str) -> str:
    """Returns the sha256, hex, of the code of a dotted path: its module and the local modules that this module imports.

    Local modules are in the package of the path, or outside the standard library and installed packages. Imports are
    parsed from the source, which is not executed. The digest does not cover modules that are imported by a computed
    name, and files that the code opens.

    Args:
      path: dotted path such as `my_package.models.build`.

    Returns:
      the digest; empty if the source of the module is not on this machine.
    """
    importlib.invalidate_caches()
    module = path.rpartition(".")[0]
    path_package = module.partition(".")[0]
    sources: dict[str, bytes] = {}
    queue = [module]
    while queue:
        for name, file in _source_files(queue.pop()).items():
            if name in sources or not (name.partition(".")[0] == path_package or _is_local(name, file)):
                continue
            sources[name] = file.read_bytes()
            queue += _imports(sources[name], name if file.stem == "__init__" else name.rpartition(".")[0])
    hasher = hashlib.sha256()
    for name in sorted(sources):
        hasher.update(f"{name} {len(sources[name])} ".encode() + sources[name])
    return hasher.hexdigest() if sources else ""


def _source_files(module: str) -> dict[str, Path]:
    """Returns the source files of a module and of its parent packages, by module name."""
    files = {}
    search_path = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        # `importlib.util.find_spec` would execute the parent packages.
        specs = (finder.find_spec(name, search_path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is None:
            break
        if spec.origin and spec.origin.endswith(".py"):
            files[name] = Path(spec.origin)
        search_path = spec.submodule_search_locations
        if search_path is None:
            break
    return files


def _is_local(name: str, file: Path) -> bool:
    if name.partition(".")[0] in PACKAGES or {"site-packages", "dist-packages"}.intersection(file.parts):
        return False
    return not file.is_relative_to(sysconfig.get_path("stdlib"))


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yields the names that a source text imports; for `from a import b` it is `a.b`, which may not be a module."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # importing the module raises the same error later
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: max(0, len(package.split(".")) - node.level + 1)] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names if base)
