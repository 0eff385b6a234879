"""The size of the house and the shape of its rooms, with limits: `python -m tests.house` (part of `make check`).

A file is a module of `beam_jobs`, `trainer`, `components` or `pipeline`. A lazy import and one for types count as imports.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_jobs", "trainer", "components", "pipeline")
WORDS = re.compile(r"\b(?<!-)(said|held|told|whoever|nobody)\b(?!-(?:out|back))", re.IGNORECASE)
_THIN = re.compile(r"__init__\.py$|^components/[^/]+/[^/]+\.py$|^pipeline/cli/[^/]+\.py$")
_SMALL, _SHORT = 60, 100  # lines


@dataclass
class Module:
    """One file of the product.

    Attributes:
      name: dotted.
      path: relative to the checkout.
      text: the source.
      tree: what Python reads there.
      imports: modules of the product that it imports, wherever the import stands.
    """

    name: str
    path: Path
    text: str
    tree: ast.Module
    imports: set[str] = field(default_factory=set)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())


def modules(packages: Iterable[str] = PACKAGES) -> dict[str, Module]:
    """Returns the modules of the packages by name, each with what it imports of them."""
    found = {}
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            text = path.read_text(encoding="utf-8")
            found[name] = Module(name, relative, text, ast.parse(text))
    for module in found.values():
        module.imports = set(_imports(module, found)) - {module.name}
    return found


def _imports(module: Module, known: dict[str, Module]) -> Iterator[str]:
    lazy = _lazy_names(module)
    for node in ast.walk(module.tree):
        if node in lazy:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in known:
                    yield full
                elif node.module in known:
                    yield node.module


def _lazy_names(module: Module) -> set[ast.AST]:
    """Returns the imports by which a package names for type checkers what it loads when it is asked for."""
    if "lazy_names(" not in module.text:
        return set()
    guarded = (
        node for node in module.tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )
    return {inner for node in guarded for inner in ast.walk(node)}


def circles(known: dict[str, Module]) -> list[list[str]]:
    """Returns the groups of modules that import each other, by the algorithm of Tarjan."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(known[name].imports):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in known:
        if name not in index:
            visit(name)
    return groups


def _docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first


def _line_counts(module: Module) -> tuple[int, int]:
    """Returns the lines of code and of docstrings."""
    of_docs = {line for node in _docstrings(module.tree) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    code = (
        number
        for number, line in enumerate(module.text.splitlines(), 1)
        if number not in of_docs and line.strip() and not line.lstrip().startswith("#")
    )
    return sum(1 for _ in code), len(of_docs)


def _functions(known: dict[str, Module]) -> list[int]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return sorted(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in known.values()
        for node in ast.walk(module.tree)
        if isinstance(node, kinds)
    )


def measure() -> dict[str, float]:
    """Returns the figures by the names that the limits have."""
    known = modules()
    importers: dict[str, set[str]] = defaultdict(set)
    for module in known.values():
        for other in module.imports:
            importers[other].add(module.name)
    counts = [_line_counts(module) for module in known.values()]
    code, docs = sum(count for count, _ in counts), sum(count for _, count in counts)
    thick = [module for module in known.values() if not _THIN.search(str(module.path))]
    lengths = sorted(module.lines for module in known.values())
    functions = _functions(known)
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    texts = [module.text for module in known.values()] + [page.read_text(encoding="utf-8") for page in pages]
    tests = (ROOT / "tests").rglob("*.py")
    return {
        "product files": len(known),
        "product lines": sum(lengths),
        "code lines": code,
        "docstring lines a code line": round(docs / code, 3),
        **{f"modules at the root of {package}": len(list((ROOT / package).glob("*.py"))) for package in PACKAGES},
        f"files under {_SMALL} lines": sum(module.lines < _SMALL for module in thick),
        f"modules under {_SHORT} lines with one importer": sum(
            module.lines < _SHORT and len(importers[module.name]) == 1 for module in thick
        ),
        "median lines of a file": statistics.median(lengths),
        "lines of the largest file": lengths[-1],
        "lines of a function, p95": functions[int(len(functions) * 0.95)],
        "lines of the largest function": functions[-1],
        "import circles": len(circles(modules((*PACKAGES, "benchmarks")))),
        "imports of pipeline.cli from outside": sum(
            name.startswith("pipeline.cli")
            and not module.name.startswith("pipeline.cli")
            and module.name != "pipeline.entry"
            for module in known.values()
            for name in module.imports
        ),
        "words of no technical English": sum(len(WORDS.findall(text)) for text in texts),
        "test lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests),
    }


def main() -> None:
    """Prints every figure."""
    for name, figure in measure().items():
        print(f"{name:<50} {figure:>8}")
    sys.exit(0)


if __name__ == "__main__":
    main()
