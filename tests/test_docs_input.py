"""What the pages about input and training show is what happens: their Python runs, their YAML is a configuration, their
commands exist, and every recipe names tests that are there. `<!-- not run: REASON -->` before a block excuses it."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import queue
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import yaml

from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, TableColumns
from tests.doc_pages import FENCE, ROOT, Block, blocks, check_feedline, check_settings, text_of
from tests.make_images import class_folders, encode, jpeg, png

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = ("input", "ops", "streams", "models", "training", "distributed", "bench", "recipes", "doctor", "pipeline-yaml")
LANGUAGES = {"python", "yaml", "bash", "text"}

# What a page shows at full size and a test does small: every text on the left must be on the page.
SMALLER = {
    "input": {"image_side_px=224": "image_side_px=32", "steps_per_epoch=100": "steps_per_epoch=2"},
    "streams": {"image_side_px=224": "image_side_px=32"},
    "models": {
        "image_side_px=96": "image_side_px=32, batch_size=8",
        "side_px=96, ": "side_px=32, ",
        "epochs=15, ": "epochs=6, ",
        " epochs=5, ": " epochs=1, ",
        "steps_per_epoch=100": "steps_per_epoch=1",
        '"categorical_crossentropy"': '"categorical_crossentropy", run_eagerly=True',  # compiling takes longer
    },
    "training": {"image_side_px=64": "image_side_px=16", "epochs=5": "epochs=1"},
    "bench": {"image_side_px=224": "image_side_px=32", "seconds=1.0": "seconds=0.02, rounds=1"},
}


def of_language(language: str) -> list[Any]:
    """The blocks that are to be tried, as parameters."""
    every = [block for page in PAGES for block in blocks(page)]
    found = [block for block in every if block.language == language and not block.excuse]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in found]


# --- what the pages take for granted


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the datasets and files that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    _annotated_dataset(folder / "annotated", folder / "dataset")
    for number, name in enumerate(("photographs", "drawings")):
        labels = (("cat", "dog"), ("cat", "owl"))[number]
        source = class_folders(folder / f"{name}_source", per_class=12, labels=labels)
        run(IngestOptions(source=str(source), out=str(folder / name), splits={"train": 1}))
    (folder / "frames").mkdir()
    for number in range(64):
        (folder / "frames" / f"{number:03d}.jpg").write_bytes(jpeg(number, 40, 48))
    _foreign_records(folder)
    for page in PAGES:
        for block in blocks(page):
            if block.file:
                path = folder / block.file
                path.parent.mkdir(exist_ok=True)
                path.write_text(block.code)
    return folder


def _annotated_dataset(source: Path, out: Path) -> None:
    """64 images to train on and 16 to evaluate, each with a label, a mask and two user columns."""
    source.mkdir()
    rows = []
    for number in range(80):
        (source / f"{number}.jpg").write_bytes(jpeg(number, 48, 64))
        (source / f"{number}.png").write_bytes(encode(np.full((48, 64), number % 3, np.uint8), "PNG"))
        cells = {"age": 20 + number, "tags": ["a", "b"][: number % 3], "mask": f"{number}.png"}
        split = "train" if number < 64 else "eval"
        rows.append({"image": f"{number}.jpg", "label": ("cat", "dog")[number % 2], "split": split, **cells})
    (source / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = TableColumns(split="split", mask="mask", extra=("age", "tags"))
    splits = {"train": 0.8, "eval": 0.2}
    run(IngestOptions(source=str(source / "rows.jsonl"), out=str(out), splits=splits, shards=2, columns=columns))


def _foreign_records(folder: Path) -> None:
    """TFRecord files that somebody else wrote: those of TFDS, and a layout of their own, packed."""
    import tensorflow as tf

    def write(path: Path, packing: str, rows: list[dict[str, Any]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tf.io.TFRecordWriter(str(path), packing) as writer:
            for row in rows:
                features = {name: _feature(value) for name, value in row.items()}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())

    def _feature(value: Any) -> tf.train.Feature:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    digits = [{"image": png(number, 28, 28), "label": number % 10} for number in range(64)]
    write(folder / "mnist/3.0.1/mnist-train.tfrecord-00000-of-00001", "", digits)
    names = (b"crow", b"rook")
    birds = [{"jpeg": jpeg(n), "species": names[n % 2], "id": str(n).encode()} for n in range(64)]
    write(folder / "birds/birds.gz", "GZIP", birds)


def given(page: str) -> dict[str, Any]:
    """What a page says is yours, by name; files go into the working directory."""
    makers = {"input": _a_model, "models": _a_weights_file, "distributed": _a_model_file}
    makers |= {"streams": _sources, "recipes": _sources}
    return makers[page]() if page in makers else {}


def _a_model() -> dict[str, Any]:
    import keras

    layers = [keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    model = keras.Sequential([keras.Input([32, 32, 3], dtype="uint8"), *layers])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return {"model": model}


def _a_weights_file() -> dict[str, Any]:
    from trainer.models import ModelSpec, build_model

    whole = build_model("MobileNetV2", ModelSpec(side_px=32, classes=2, mean_rgb=(0, 0, 0), std_rgb=(1, 1, 1)))
    next(layer for layer in whole.layers if hasattr(layer, "layers")).save("base_no_top.h5")
    return {}


def _a_model_file() -> dict[str, Any]:
    from trainer.models import ModelSpec, build_model

    spec = ModelSpec(side_px=64, classes=2, mean_rgb=(0, 0, 0), std_rgb=(1, 1, 1))
    build_model("small_cnn", spec).save("model.keras")
    return {}


def _sources() -> dict[str, Any]:
    items = [(f"{number}", jpeg(number), number % 2) for number in range(64)]

    def receive(received: Any) -> None:
        for item in [*items, None]:
            received.put(item)

    first, second = queue.SimpleQueue(), queue.SimpleQueue()
    receive(first)
    receive(second)
    return {
        "receive": receive,
        "left": lambda: iter(items),
        "right": lambda: iter(items),
        "first": first,
        "second": second,
    }


# --- blocks


def test_every_page_is_there():
    assert [page for page in PAGES if not text_of(page)] == []


def test_what_is_not_run_is_said(capsys):
    with capsys.disabled():
        for block in (block for page in PAGES for block in blocks(page) if block.excuse):
            click.echo(f"\ndocs/{block.page}.md:{block.line} is not run: {block.excuse}")


def test_every_block_is_fenced_and_says_what_it_is():
    for page in PAGES:
        outside = FENCE.sub("", text_of(page))
        assert "```" not in outside, f"docs/{page}.md holds half a fence"
        assert not re.findall(r"^(?: {4}|\t).*", outside, flags=re.MULTILINE), f"docs/{page}.md indents code"
        assert {block.language for block in blocks(page)} <= LANGUAGES, page


@pytest.mark.parametrize("page", SMALLER)
def test_what_is_done_small_stands_on_the_page(page):
    shown = "".join(block.code for block in blocks(page) if block.language == "python")
    assert [text for text in SMALLER[page] if text not in shown] == []


# --- Python


@pytest.mark.parametrize("page", PAGES)
def test_python_runs_in_the_order_of_the_page(page, workplace, monkeypatch, capsys):
    monkeypatch.chdir(workplace)
    monkeypatch.syspath_prepend(str(workplace))
    names, printed = {"__name__": page, **given(page)}, ""
    for block in blocks(page):
        if block.printed:
            assert printed.strip() == block.code.strip(), f"docs/{page}.md:{block.line} is not what is printed"
        if block.language != "python" or block.excuse:
            continue
        capsys.readouterr()
        if block.fresh:
            click.echo(run_apart(block))
        else:
            run_block(block, {"__name__": block.file} if block.file else names)
        printed = capsys.readouterr().out


def run_block(block: Block, names: dict[str, Any]) -> None:
    """Runs a block, and takes a batch of every dataset that it made."""
    import tensorflow as tf

    before, code = dict(names), block.code
    for shown, small in SMALLER.get(block.page, {}).items():
        code = code.replace(shown, small)
    # As many empty lines before it as on the page, so that an error names the line there.
    exec(compile("\n" * (block.line - 1) + code, f"docs/{block.page}.md", "exec"), names)
    for name, value in names.items():
        if isinstance(value, tf.data.Dataset) and value is not before.get(name):
            assert next(iter(value), None) is not None, f"docs/{block.page}.md:{block.line}: {name} gives no batch"


def run_apart(block: Block) -> str:
    """Runs a block in a process of its own and returns what it prints."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-W", "ignore", "-c", block.code]
    found = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert found.returncode == 0, f"docs/{block.page}.md:{block.line}: {found.stderr}"
    return found.stdout


def test_a_model_of_your_own_is_found(workplace, monkeypatch):
    from trainer.models import ModelSpec, build_model

    monkeypatch.syspath_prepend(str(workplace))
    spec = ModelSpec(side_px=32, classes=3, mean_rgb=(0, 0, 0), std_rgb=(1, 1, 1))
    assert build_model("my_package.models.build", spec).output_shape == (None, 3)


# --- YAML and commands


@pytest.mark.parametrize("block", of_language("yaml"))
def test_yaml_is_a_configuration(block, workplace, monkeypatch):
    monkeypatch.syspath_prepend(str(workplace))
    check_settings(yaml.safe_load(block.code))


@pytest.mark.parametrize("block", of_language("bash"))
def test_commands_and_their_options_exist(block, workplace, monkeypatch):
    monkeypatch.syspath_prepend(str(workplace))
    for words in block.commands:
        if words[0] == "export":
            check_cluster(words[1], monkeypatch)
        elif words[0] == "feedline":
            check_feedline(words[1:])
        elif words[:2] == ["python", "-m"]:
            check_module(words[2], words[3:])
        else:
            assert words[0] in ("pip", "tensorboard"), words


def check_cluster(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer.cluster import cluster_of_environment

    name, _, value = variable.partition("=")
    assert name == "TF_CONFIG"
    monkeypatch.setenv(name, value)
    assert cluster_of_environment().host.count > 1


def check_module(module: str, arguments: list[str]) -> None:
    found = importlib.util.find_spec(f"{module}.__main__") or importlib.util.find_spec(module)
    assert found
    assert found.origin
    source = Path(found.origin).read_text(encoding="utf-8")
    assert [word for word in arguments if word.startswith("--") and f'"{word}"' not in source] == []


# --- tables of options


def test_every_option_and_every_op_is_explained():
    from trainer.ops import OPS
    from trainer.ops.device import DEVICE_OPS
    from trainer.options import InputOptions
    from trainer.train_options import TrainOptions

    assert {field.name for field in fields(InputOptions)} == rows_of(text_of("input").partition("## Options")[2])
    assert OPS.keys() | DEVICE_OPS.keys() == rows_of(text_of("ops").partition("## The table")[2].partition("## ")[0])
    training = text_of("training") + text_of("models")
    assert [field.name for field in fields(TrainOptions) if not re.search(rf"\b{field.name}\b", training)] == []


def rows_of(text: str) -> set[str]:
    """The names in the first column of a table."""
    cells = re.findall(r"^\| (`.+?`) \|", text, flags=re.MULTILINE)
    return {re.sub(r"\(.*", "", name) for cell in cells for name in re.findall(r"`(\w+(?:\(.*?\))?)`", cell)}


# --- recipes

_HEADING = re.compile(r"^### (\d+)\. .+$", re.MULTILINE)


@functools.cache
def recipes() -> dict[int, str]:
    """Number -> text of every recipe."""
    text = text_of("recipes")
    starts = list(_HEADING.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {int(start[1]): text[start.end() : end] for start, end in zip(starts, ends, strict=True)}


def test_every_recipe_is_there_once_and_in_order():
    assert [int(number) for number in _HEADING.findall(text_of("recipes"))] == list(range(1, 31))


@pytest.mark.parametrize("number", range(1, 31))
def test_a_recipe_has_an_example_a_page_and_a_test(number):
    recipe = recipes()[number]
    assert len(FENCE.findall(recipe)) == 1
    pages = re.findall(r"\]\(([\w-]+)\.md(?:#([\w-]+))?\)", recipe)
    assert pages
    assert [page for page, _ in pages if not text_of(page)] == []
    assert [f"{page}#{place}" for page, place in pages if place and place not in headings_of(page)] == []
    tests = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", recipe)
    assert tests
    assert [f"{path}::{name}" for path, name in tests if name not in known_tests(path)] == []


@functools.cache
def headings_of(page: str) -> set[str]:
    """The headings of a page, as a link spells them."""
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), flags=re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in found}


@functools.cache
def known_tests(path: str) -> set[str]:
    body = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
