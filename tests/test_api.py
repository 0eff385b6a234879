"""The Python API: what `import beam_jobs, trainer` gives, typed and explained, with examples that are true.

Every example of a docstring runs in a directory of its own with what it takes for granted: `photos`, 24 pictures each
of `cat` and `dog` and one file that is none; `dataset`, made of them; `drawings`, another dataset; `mnist`, TFRecord
files as TFDS writes them; `model`, exported.
"""

from __future__ import annotations

import ast
import dataclasses
import doctest
import enum
import importlib
import inspect
import operator
import pkgutil
import pydoc
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from beam_jobs import common
from tests.make_images import class_folders, png

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_jobs", "trainer")
CONSTANTS = {"trainer.FOREVER": "trainer/input/windowed_reader.py", "trainer.TFDS": "trainer/streams/files.py"}
HEAVY = ("apache_beam", "keras", "numpy", "pyarrow", "tensorflow", "tfx")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def package(name: str) -> ModuleType:
    return importlib.import_module(name)


def places_of(name: str) -> dict[str, tuple[str, str]]:
    return common.targets(package(name)._MODULES, package(name)._ALIASES)


NAMES = [f"{name}.{public}" for name in PACKAGES for public in package(name).__all__]


def the(name: str) -> Any:
    """The object that a name such as `trainer.Host` means."""
    where, _, public = name.partition(".")
    return getattr(package(where), public) if public else package(where)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import tensorflow as tf

    from beam_jobs import IngestOptions, run
    from trainer import ModelSpec, build_model, export, parse_ops

    folder = tmp_path_factory.mktemp("examples")
    photos = class_folders(folder / "photos", per_class=24, labels=("cat", "dog"))
    (photos / "cat" / "broken.jpg").write_text("this is not an image")
    run(IngestOptions(source=str(photos), out=str(folder / "dataset"), splits={"train": 0.8, "eval": 0.2}))
    other = class_folders(folder / "drawn", per_class=6, labels=("cat", "owl"))
    run(IngestOptions(source=str(other), out=str(folder / "drawings"), splits={"train": 1}))
    (folder / "mnist").mkdir()
    with tf.io.TFRecordWriter(str(folder / "mnist" / "mnist-train.tfrecord-00000-of-00001")) as writer:
        for number in range(64):
            image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[png(number, 28, 28)]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 10]))
            features = tf.train.Features(feature={"image": image, "label": label})
            writer.write(tf.train.Example(features=features).SerializeToString())
    spec = ModelSpec(side_px=16, classes=2, mean_rgb=(125, 123, 114), std_rgb=(63, 62, 67))
    export(build_model("small_cnn", spec), parse_ops("decode|resize(16)"), ("cat", "dog"), 16, str(folder / "model"))
    return folder


def explanation(name: str) -> str:
    """The docstring of a name; of a constant the text below it, which pages show and `help` does not."""
    if name not in CONSTANTS:
        return inspect.getdoc(the(name)) or ""
    body = ast.parse((ROOT / CONSTANTS[name]).read_text(encoding="utf-8")).body
    below = {ast.unparse(node.targets[0]): after for node, after in pairwise(body) if isinstance(node, ast.Assign)}
    after = below[name.rpartition(".")[2]]
    is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
    return inspect.cleandoc(str(after.value.value)) if is_text else ""


# --- the packages


def test_importing_the_packages_loads_nothing_heavy():
    code = f"import sys, feedline; dir(feedline); print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("name", PACKAGES)
def test_a_type_checker_sees_the_names_that_there_are(name):
    assert (ROOT / name / "py.typed").is_file()
    tree = ast.parse((ROOT / name / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {
        alias.asname or alias.name: (node.module.removeprefix(f"{name}."), alias.name)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert seen == places_of(name)
    assert sorted(seen) == sorted(package(name).__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_names_and_modules_do_not_stand_in_the_way_of_one_another(name):
    modules = {found.name for found in pkgutil.iter_modules(package(name).__path__)}
    assert set(package(name).__all__) & modules == set()
    assert [getattr(package(name), public) for public in package(name).__all__]
    places = {module for module, _ in places_of(name).values()}
    wrong = [one for one in places if operator.attrgetter(one)(package(name)) is not sys.modules[f"{name}.{one}"]]
    assert wrong == []


@pytest.mark.parametrize("name", [*PACKAGES, "feedline"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package(name).no_such_name  # noqa: B018


def test_the_short_names_are_names_of_the_packages():
    """Those that a type checker sees, and those that there are."""
    tree = ast.parse((ROOT / "feedline" / "__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {one.asname or one.name: f"{node.module}.{one.name}" for node in guarded.body for one in node.names}
    assert sorted(seen) == sorted(package("feedline").__all__)
    assert [name for name, place in seen.items() if the(f"feedline.{name}") is not the(place)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_help_tells_what_there_is(name):
    listed = re.findall(r"\w+", package(name).__doc__)
    story, _, rest = pydoc.plain(pydoc.render_doc(package(name))).partition("PACKAGE CONTENTS")
    assert ">>> " in story
    assert [
        public
        for public in package(name).__all__
        if public not in listed or not re.search(rf"^    .*\b{public}\b", rest, re.MULTILINE)
    ] == []


@pytest.mark.parametrize("name", ["components", "pipeline"])
def test_what_the_other_packages_name_is_there(name):
    lines = re.findall(r"^  (\w+\.[\w., ]+): ", package(name).__doc__, re.MULTILINE)
    named = [place for line in lines for place in line.split(", ")]
    assert len(named) > 5
    assert [place for place in named if not is_defined(name, place)] == []


def is_defined(package_name: str, place: str) -> bool:
    """Whether a module of a package defines a name, by the source alone."""
    module, _, public = place.rpartition(".")
    path = ROOT / package_name / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return public in {getattr(node, "name", "") for node in ast.parse(path.read_text(encoding="utf-8")).body}


# --- the names


def lacking(name: str) -> list[str]:
    """What the explanation of a name lacks: a sentence, an example, what it returns, or one of its parts."""
    text = explanation(name)
    wanted = {"a sentence at its start": r"\A[^\W\d_]", "an example": r"^Examples:\n  >>> "}
    wanted |= {word: rf"^  {word}: \S" for word in described(name)}
    if inspect.isfunction(the(name)) and inspect.signature(the(name), eval_str=False).return_annotation != "None":
        wanted["what it returns"] = r"^Returns:\n  \S"
    return [part for part, pattern in wanted.items() if not re.search(pattern, text, re.MULTILINE)]


def test_every_name_is_explained_with_an_example():
    assert {name: lacking(name) for name in NAMES if lacking(name)} == {}


def described(name: str) -> list[str]:
    """The parameters of a function, the fields of a dataclass, or the members of an enumeration."""
    thing = the(name)
    if name in CONSTANTS:
        return []
    if isinstance(thing, enum.EnumMeta):
        return list(thing.__members__)
    if dataclasses.is_dataclass(thing):
        return [field.name for field in dataclasses.fields(thing)]
    return list(inspect.signature(thing).parameters) if inspect.isfunction(thing) else []


def failure(name: str, folder: Path) -> str:
    """What goes wrong where the example of a name is run; empty when it is true."""
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(explanation(name), {}, name, None, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        failed = doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append).failed
    shutil.rmtree(folder)
    return "".join(report) if failed or test.examples else "there is no example"


@pytest.mark.timeout(1200)
def test_every_example_is_true(prepared, tmp_path):
    names = [*PACKAGES, "feedline", *NAMES]
    found = {name: failure(name, Path(shutil.copytree(prepared, tmp_path / name))) for name in names}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_pages_of_the_reference_have_every_name_once():
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("api-*.md")]
    assert sorted(name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)) == sorted(NAMES)
