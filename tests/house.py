"""The size of the house and the shape of its rooms, with limits: `python -m tests.house`, a part of `make check`."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_jobs", "trainer", "components", "feedline", "pipeline")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in (*PACKAGES, "benchmarks")
    for path in sorted((ROOT / package).rglob("*.py"))
}
# What is small for a reason: a package's names, the files that TFX asks of a component, one file a command.
THIN = re.compile(r"__init__\.py$|^components/\w+/\w+\.py$|^pipeline/cli/\w+\.py$")
WORDS = re.compile(r"\b(?<!-)(?:said|held|told|whoever|nobody)\b(?!-(?:out|back))", re.IGNORECASE)
SMALL_LINES, SHORT_LINES = 60, 100

# Figure -> its largest value; the docstring ratio has a least one.
LIMITS = {
    "product files": 272,
    "product lines": 56_149,
    "code lines": 34_565,
    "modules at the root of beam_jobs": 12,
    "modules at the root of trainer": 8,
    "modules at the root of components": 4,
    "modules at the root of pipeline": 8,
    "files under 60 lines": 8,
    "modules under 100 lines with one importer": 5,
    "lines of the largest file": 500,
    "lines of a function, p95": 35,
    "lines of the largest function": 71,
    "words that are no technical English": 0,
    "lines of tests": 63_215,
}
LEAST_DOCSTRING_LINES = 0.30  # a line of code


@functools.cache
def parsed(name: str) -> ast.Module:
    """Returns the syntax tree of a module of `MODULES`."""
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@functools.cache
def imported_modules(name: str) -> frozenset[str]:
    """Returns the modules of the product that a module imports anywhere, also for types alone, with their packages."""
    targets = set()
    for node in ast.walk(_without_lazy_names(parsed(name))):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} imports relatively"
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            targets |= {member if member in MODULES else str(node.module) for member in members}
    for target in list(targets):
        parts = target.split(".")
        parents = {".".join(parts[:end]) for end in range(1, len(parts))}
        targets |= {parent for parent in parents if not f"{name}.".startswith(f"{parent}.")}
    return frozenset(targets & MODULES.keys() - {name})


def _without_lazy_names(tree: ast.Module) -> ast.Module:
    """Returns a module without what it imports for a type checker alone, where `lazy_names` is used."""
    if not any(isinstance(node, ast.alias) and node.name == "lazy_names" for node in ast.walk(tree)):
        return tree
    body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return ast.Module(body, tree.type_ignores)


def measure() -> dict[str, float]:
    """Returns the figures of the product, of `docs` and of `tests`."""
    product = [name for name in MODULES if name.partition(".")[0] in PACKAGES]
    texts = {name: MODULES[name].read_text(encoding="utf-8") for name in product}
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    importers = Counter(other for name in product for other in imported_modules(name))
    thick = [name for name in product if not THIN.search(MODULES[name].relative_to(ROOT).as_posix())]
    of_docstrings = {name: set(_docstring_lines(parsed(name))) for name in product}
    code = sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in of_docstrings[name]
        for name, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
    )
    functions = sorted(_function_lengths(product))
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    prose = [*texts.values(), *(page.read_text(encoding="utf-8") for page in pages)]
    return {
        "product files": len(product),
        "product lines": sum(lines.values()),
        "code lines": code,
        "docstring lines a code line": round(sum(map(len, of_docstrings.values())) / code, 3),
        **{f"modules at the root of {package}": len(list((ROOT / package).glob("*.py"))) for package in PACKAGES},
        f"files under {SMALL_LINES} lines": sum(lines[name] < SMALL_LINES for name in thick),
        f"modules under {SHORT_LINES} lines with one importer": sum(
            lines[name] < SHORT_LINES and importers[name] == 1 for name in thick
        ),
        "median lines of a file": statistics.median(lines.values()),
        "lines of the largest file": max(lines.values()),
        "lines of a function, p95": functions[int(len(functions) * 0.95)],
        "lines of the largest function": functions[-1],
        "words that are no technical English": sum(len(WORDS.findall(text)) for text in prose),
        "lines of tests": sum(
            len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "tests").rglob("*.py")
        ),
    }


def _docstring_lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False):
            yield from range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)


def _function_lengths(names: list[str]) -> Iterator[int]:
    for name in names:
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.FunctionDef):
                yield (node.end_lineno or 0) - node.lineno + 1


def main() -> None:
    """Prints every figure; the exit code is 1 where one is beyond its limit."""
    figures = measure()
    beyond = {name for name, limit in LIMITS.items() if figures[name] > limit}
    if figures["docstring lines a code line"] < LEAST_DOCSTRING_LINES:
        beyond.add("docstring lines a code line")
    limits: dict[str, float] = {**LIMITS, "docstring lines a code line": LEAST_DOCSTRING_LINES}
    for name, figure in figures.items():
        note = f"limit {limits[name]:g}" if name in limits else ""
        sys.stdout.write(f"{name:<45} {figure:>9g}   {note}{'   BEYOND IT' if name in beyond else ''}\n")
    sys.exit(bool(beyond))


if __name__ == "__main__":
    main()
