"""Places in source code where data could be run as code, or written where it says itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")
TEMPLATES = ("beam_jobs/common/templates", "components/dataset_report/templates", "trainer/bench/templates")

# What these read can run code, or reach files and hosts, whichever function reads it.
_MODULES = {"_pickle", "cloudpickle", "code", "dill", "imp", "joblib", "marshal", "pickle", "runpy", "shelve", "torch"}
_MODULES |= {"jsonpickle", "lxml", "xml", "xmlrpc"}
_CALLS = re.compile(
    r"(builtins\.)?(eval|exec|compile|__import__)"
    r"|os\.(system|popen|exec\w+|spawn\w+|posix_spawnp?)|pty\.spawn|subprocess\.(getoutput|getstatusoutput)"
    r"|asyncio\.(\w+\.)?create_subprocess_shell|airflow\.(\w+\.)+BashOperator"
    r"|pandas\.(read_pickle|read_hdf|HDFStore|eval)|logging\.config\.(fileConfig|listen)"
    r"|yaml\.(load|load_all|full_load|full_load_all|unsafe_load|unsafe_load_all)"
    r"|csv\.(writer|DictWriter)|pyarrow\.csv\.write_csv"  # a cell may be a formula to who opens the table
    r"|shutil\.unpack_archive|tempfile\.mktemp|markupsafe\.Markup|jinja2\.(Template|from_string)"
    r"|(tensorflow\.)?(keras\.)?(saving|models)\.load_model|tensorflow\.saved_model\.load|tensorflow\.py_function"
)
# Of tar and zip archives, whatever they are called, and of the loops of asyncio.
_METHODS = {"extractall", "extract", "subprocess_shell"}
# Where an argument that is judged stands when it is not given by name.
_PLACES = {"numpy.load": ("allow_pickle", 2)}
_PLACES |= {f"subprocess.{name}": ("shell", 8) for name in ("Popen", "run", "call", "check_call", "check_output")}
_SHELL = re.compile(r"(.*[/\\])?((ba|da|a|z|k|mk|c|tc|fi)?sh|cmd|powershell|pwsh)(\.exe)?", re.IGNORECASE)
_SHELL_LINE = re.compile(r"\s*(\S*/)?(env\s+)?(ba|da|a|z|k|mk|c|tc|fi)?sh\s+(-\S+\s+)*-\w*c\b")
_RUN = re.compile(r"-\w*c|/c|-command", re.IGNORECASE)  # what follows is code
_OUR_OWN = re.compile(r"_?[A-Z][A-Z_]*")  # the name of a constant


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
            yield from _run_by_program(node.args)
        elif isinstance(node, (ast.List, ast.Tuple)):
            yield from _run_by_program(node.elts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _SHELL_LINE.match(node.value):
            yield "a shell"


def _run_by_program(parts: list[ast.expr]) -> Iterator[str]:
    """Yields what runs code, of a command or a piece of one: a shell, or any program with code of who knows whom."""
    words = [part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "" for part in parts]
    shells = [place for place, word in enumerate(words) if _SHELL.fullmatch(word)]
    if shells and any(_RUN.fullmatch(word) for word in words[shells[0] + 1 :]):
        yield "a shell"
    elif any(word == "-c" and not _is_ours(code) for word, code in zip(words, parts[1:], strict=False)):
        yield "-c"


def _is_ours(code: ast.expr) -> bool:
    """Returns whether an argument is text in the source, there or as a constant of the module."""
    return isinstance(code, ast.Constant) or (isinstance(code, ast.Name) and bool(_OUR_OWN.fullmatch(code.id)))


def _judged(call: ast.Call, name: str) -> Iterator[str]:
    given = dict(_given(call, name))
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
    if name == "importlib.import_module":
        module = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
        if not isinstance(module, str) or module.partition(".")[0] in _MODULES:
            yield name


def _given(call: ast.Call, name: str) -> Iterator[tuple[str, ast.expr]]:
    """Yields the arguments with their names; of some calls all that are judged, `**` may be any of them."""
    argument, place = _PLACES.get(name, ("", len(call.args)))
    if place < len(call.args):
        yield argument, call.args[place]
    for keyword in call.keywords:
        yield keyword.arg or argument, keyword.value


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
