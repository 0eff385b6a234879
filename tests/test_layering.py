"""The rules of the house: who may import whom, and what an import may do."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import python
from tests.house import MODULES, ROOT, imported_modules, parsed
from tests.make_images import class_folders

ALLOWED = {
    "beam_jobs": {"beam_jobs"},
    # The report draws what the model sees, with the very ops that the trainer uses.
    "components": {"beam_jobs", "components", "trainer"},
    "trainer": {"beam_jobs", "trainer"},
    "feedline": {"beam_jobs", "trainer"},  # and nothing imports it
    "pipeline": {"beam_jobs", "components", "pipeline", "trainer"},
}
# Names with one underscore that are documented all the same.
DOCUMENTED = {
    "_asdict",  # of a named tuple
    "_replace",  # the same
    "_exit",  # of the module os
    "_make_beam_pipeline",  # of TFX's executors, for their subclasses
    "_thread",  # of the standard library
}
WITHOUT_BEAM = (
    "errors",
    "options",
    "types",
    "dataset.record",
    "dataset.shards",
    "dataset.manifest",
    "dataset.tfrecord",
    "images.process",
    "planning.plan",
    "stages.examine",
)

WITHOUT_TFX = """
import sys
absent = ("tfx", "tensorflow_transform", "tensorflow_data_validation", "tensorflow_metadata", "ml_metadata", "sklearn")
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def is_own(node: ast.expr) -> bool:
    """Whether it is `self`, `cls` or `super()`."""
    name = node.func if isinstance(node, ast.Call) else node
    return isinstance(name, ast.Name) and name.id in ("self", "cls", "super")


@functools.cache
def defined_names(name: str) -> set[str]:
    """What a module defines: functions, classes, variables, and attributes of its objects."""
    found = set()
    for node in ast.walk(parsed(name)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return found


@functools.cache
def all_defined_names() -> set[str]:
    return set().union(*map(defined_names, MODULES))


def foreign_names(name: str) -> Iterator[str]:
    """Yields what a module takes that begins with one underscore, and that neither it nor a base class defines."""
    for node in ast.walk(parsed(name)):
        taken, known = [], defined_names(name)
        if isinstance(node, ast.Attribute):
            taken, known = [node.attr], all_defined_names() if is_own(node.value) else known
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
            taken = [str(argument.value) for argument in node.args[1:2] if isinstance(argument, ast.Constant)]
        elif isinstance(node, ast.ImportFrom):
            taken, known = [*str(node.module).split("."), *(alias.name for alias in node.names)], set()
        elif isinstance(node, ast.Import):
            taken, known = [part for alias in node.names for part in alias.name.split(".")], set()
        if any(is_private(one) and one not in known for one in taken):
            yield f"{name} line {node.lineno}: {ast.unparse(node)}"


def sources() -> Iterator[tuple[str, Path]]:
    """Yields the package and the path of every module."""
    for package in ALLOWED:
        for path in (ROOT / package).rglob("*.py"):
            yield package, path


def test_imports_point_one_way():
    found = {str(path): (imported_packages(path) & set(ALLOWED)) - ALLOWED[package] for package, path in sources()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


def test_no_import_leads_back_to_its_module():
    try:
        graphlib.TopologicalSorter({name: imported_modules(name) for name in MODULES}).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"imported by one another: {' -> '.join(reversed(error.args[1]))}")


def test_only_the_entry_point_imports_the_command_line():
    outside = [name for name in MODULES if not f"{name}.".startswith("pipeline.cli.")]
    assert [name for name in outside if "pipeline.cli" in imported_modules(name)] == ["pipeline.entry"]


def test_nothing_private_of_another_library_is_used():
    assert [place for name in MODULES for place in foreign_names(name)] == []


def test_the_disk_contract_imports_without_beam_tensorflow_and_tfx():
    code = "import sys\n" + "".join(f"import beam_jobs.{name}\n" for name in WITHOUT_BEAM)
    code += "print([n for n in ('apache_beam', 'tensorflow', 'tfx') if n in sys.modules])"
    result = python(code, cwd=ROOT)
    assert result.stdout.strip() == "[]", result.stderr


def test_ingest_and_input_pipeline_import_without_tfx():
    imports = (
        "import beam_jobs.ingest, beam_jobs.dataset.verify, trainer.input_fn, trainer.serving.predict\nprint('ok')"
    )
    result = python(WITHOUT_TFX + imports, cwd=ROOT)
    assert result.stdout.strip() == "ok", result.stderr


def test_a_command_that_needs_tfx_says_so_in_one_line(tmp_path):
    class_folders(tmp_path / "photos", per_class=1)
    code = f"import os\nos.chdir({str(tmp_path)!r})\nfrom pipeline import cli\n"
    result = python(f"{WITHOUT_TFX}{code}sys.exit(cli.execute('run --images photos --root work'.split()))", cwd=ROOT)
    assert result.returncode == 2
    line = result.stderr.splitlines()[-1]
    assert re.fullmatch(r"feedline: error: this command needs TFX, but module '\w+' is missing; .* '\.\[tfx\]'", line)


def test_no_module_reads_the_environment_when_it_is_imported():
    reading = [
        f"{path}:{node.lineno}"
        for _, path in sources()
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
    ]
    assert reading == []


def test_the_distribution_holds_the_four_packages_and_no_tests():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    include = ast.literal_eval(re.search(r"include=(\[.*?\])", setup)[1])
    listed = python(f"from setuptools import find_packages; print(find_packages(include={include!r}))", cwd=ROOT)
    found = {name.partition(".")[0] for name in ast.literal_eval(listed.stdout.strip())}
    assert found == set(ALLOWED)
    folders = {path.parent for _, path in sources()}
    without = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()]
    assert without == [], "find_packages passes over a folder without __init__.py"
