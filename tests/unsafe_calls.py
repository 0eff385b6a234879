"""Places in source code where data could be run as code, or written where it says itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")
TEMPLATES = (
    *("beam_jobs/templates", "beam_jobs/inspect/templates"),
    *("components/dataset_report/templates", "trainer/bench/templates"),
)

# What these read can run code, or reach files and hosts, whichever function reads it.
_MODULES = {"_pickle", "cloudpickle", "code", "dill", "imp", "joblib", "marshal", "pickle", "runpy", "shelve", "torch"}
_MODULES |= {"jsonpickle", "lxml", "xml", "xmlrpc"}
_CALLS = re.compile(
    r"(builtins\.)?(eval|exec|compile|__import__)"
    r"|os\.(system|popen|exec\w+|spawn\w+|posix_spawnp?)|pty\.spawn|subprocess\.(getoutput|getstatusoutput)"
    r"|yaml\.(load|load_all|full_load|full_load_all|unsafe_load|unsafe_load_all)"
    r"|csv\.(writer|DictWriter)|pyarrow\.csv\.write_csv"  # a cell may be a formula to who opens the table
    r"|shutil\.unpack_archive|tempfile\.mktemp|markupsafe\.Markup|jinja2\.(Template|from_string)"
    r"|(tensorflow\.)?(keras\.)?(saving|models)\.load_model|tensorflow\.saved_model\.load|tensorflow\.py_function"
)
_METHODS = {"extractall", "extract"}  # of tar and zip archives, whatever they are called


def unsafe(source: str) -> Iterator[str]:
    """Yields the name of every import and call in a source that data must not reach."""
    tree = ast.parse(source)
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in _MODULES)
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").partition(".")[0] in _MODULES:
                yield str(node.module)
        elif isinstance(node, ast.Call):
            yield from _judged(node, _dotted(node.func, names))


def _judged(call: ast.Call, name: str) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if _CALLS.fullmatch(name):
        yield name
    if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
        yield call.func.attr
    if name.startswith("subprocess.") and not _is(given.get("shell"), None, False):
        yield f"{name}, shell"
    if not _is(given.get("allow_pickle"), None, False) or not _is(given.get("safe_mode"), None, True):
        yield f"{name}, unpickling"
    if name == "PIL.Image.open" and "formats" not in given:  # some of its formats start programs
        yield f"{name}, any format"
    if name == "jinja2.Environment" and not _is(given.get("autoescape"), True):
        yield f"{name}, no escaping"
    if name in ("importlib.import_module", "__import__") and not isinstance(call.args[0], ast.Constant):
        yield name


def _is(node: ast.expr | None, *allowed: object) -> bool:
    """Returns whether an argument is one of some constants; one that is not given is None."""
    return (node is None and None in allowed) or (isinstance(node, ast.Constant) and node.value in allowed)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or name, name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return ""


def found_in_product() -> set[tuple[str, str]]:
    """Returns file and name of everything unsafe in the product."""
    return {
        (path.relative_to(ROOT).as_posix(), name)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in unsafe(path.read_text(encoding="utf-8"))
    }


def unescaped_in_templates() -> set[str]:
    """Returns what the templates of pages put in without escaping it."""
    unescaped = re.compile(r"\{\{\s*([^}|]+?)\s*\|[^}]*\bsafe\b|(autoescape\s+false)")
    return {
        (found[1] or found[2])
        for folder in TEMPLATES
        for path in (ROOT / folder).glob("*.html")
        for found in unescaped.finditer(path.read_text(encoding="utf-8"))
    }
