"""What the pages of the documentation take for granted: photographs, datasets, files of others, a finished run."""

from __future__ import annotations

import csv
import fcntl
import json
import queue
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, TableColumns
from tests.doc_pages import Block
from tests.make_images import class_folders, encode, jpeg, png

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
CONFIG = """\
root: work
ingest: {source: photos}
input: {image_side_px: 32, batch_size: 8}
train: {epochs: 1, learning_rate: 0.002}
"""


# --- places


def common(own: Path, worker: str) -> Path:
    """The temporary directory of all processes that run these tests, by that of one, `master` when it is alone."""
    return own if worker == "master" else own.parent


def once(folder: Path, make: Callable[[Path], Any]) -> Path:
    """Lets one of the processes that run tests make a folder, and the others wait for it; returns the folder."""
    made = folder.with_suffix(".made")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def make_everything(folder: Path) -> Path:
    """Makes all that takes no run of the pipeline."""
    _photographs(folder)
    _annotated_dataset(folder / "annotated", folder / "dataset")
    for number, name in enumerate(("photographs", "drawings")):
        labels = (("cat", "dog"), ("cat", "owl"))[number]
        source = class_folders(folder / f"{name}_source", per_class=12, labels=labels)
        run(IngestOptions(source=str(source), out=str(folder / name), splits={"train": 1}))
    (folder / "frames").mkdir()
    for number in range(64):
        (folder / "frames" / f"{number:03d}.jpg").write_bytes(jpeg(number, 40, 48))
    _foreign_records(folder)
    (folder / "pipeline.yaml").write_text(CONFIG)
    return folder


def make_modules(folder: Path, blocks: Iterable[Block]) -> None:
    """Writes the modules that pages show."""
    for block in (block for block in blocks if block.file.endswith(".py")):
        path = folder / block.file
        path.parent.mkdir(exist_ok=True)
        path.write_text(block.code)


def make_run(folder: Path, programs: Path) -> None:
    """Makes the root of a finished `feedline run`, `work`, of the photographs there."""
    # Of a handful of images no model is surely better than its largest class.
    pushed = ("--set", "evaluate.above_largest_class=false")
    command = [str(programs / "feedline"), "run", "--config", "pipeline.yaml", *pushed]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def furnish(folder: Path, everything: Path, code: str) -> None:
    """Copies what a page names and does not make itself.

    Args:
      folder: where the page will be run.
      everything: what there is to copy.
      code: all code of the page; a path behind `--out`, or the `--root` of a run, is made by it.
    """
    made = set(re.findall(r"--out[ =](\w+)", code)) | set(re.findall(r"feedline run\b.*--root[ =](\w+)", code))
    for path in everything.iterdir():
        named = re.search(rf"(?<![\w/-]){re.escape(path.name)}\b", code)
        if path.name in made or not (named or path.is_file()):
            continue
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)


def prepare(page: str, folder: Path, everything: Path) -> None:
    """What one page alone takes for granted. A dataset of ours is also one that TFDS prepared."""
    if page == "spans":
        photos = shutil.move(folder / "photos", folder / "whole")
        for place in ("span-001/v1", "span-002/v1", "span-002/v2"):
            shutil.copytree(photos, folder / "photos" / place)
    if page in ("recipes/26-tfds", "from-tfds", "inspect"):
        shutil.copytree(everything / "dataset", folder / "tensorflow_datasets/mnist/3.0.1")
    if page in ("doctor", "models"):  # the source of the settings, which the page does not name
        shutil.copytree(everything / "photos", folder / "photos")
    if page == "inspect":
        shutil.rmtree(folder / "dataset")
        run(IngestOptions(source=str(everything / "photos"), out=str(folder / "dataset"), splits={"train": 1}))
    if page == "lineage":
        shutil.copytree(max((folder / "work/serving").iterdir()), folder / "deployed/model")


def _photographs(folder: Path) -> None:
    """Class folders, the same as a batch, and tables of them: with owners, and with masks."""
    photos = class_folders(folder / "photos", per_class=36, labels=("cat", "dog"))
    (photos / "cat" / "1.jpg").write_bytes(jpeg(1))
    (folder / "photo.jpg").write_bytes(jpeg(2))
    shutil.copytree(photos, folder / "batches" / "1")
    shutil.copytree(photos, folder / "batches" / "2")
    (folder / "masks").mkdir()
    with (folder / "labels.csv").open("w", newline="") as labels, (folder / "pairs.csv").open("w", newline="") as pairs:
        owned, masked = csv.writer(labels), csv.writer(pairs)
        owned.writerow(["file", "kind", "owner", "age"])
        masked.writerow(["image", "label", "mask"])
        for number, path in enumerate(sorted(photos.rglob("*.jpg"))):
            image, mask = path.relative_to(folder).as_posix(), f"masks/{number}.png"
            height, width = (60, 80) if path.name == "1.jpg" else (40 + 3 * int(path.stem), 90 - 2 * int(path.stem))
            (folder / mask).write_bytes(encode(np.full((height, width), number % 3, np.uint8), "PNG"))
            owned.writerow([image, path.parent.name, f"owner {number}", number])
            masked.writerow([image, path.parent.name, mask])


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
    write(folder / "somebody.tfrecord", "", [{"image/encoded": jpeg(n), "image/class/label": n % 2} for n in range(64)])


# --- what a page says is yours, by name; files go into the working directory


def given(page: str) -> dict[str, Any]:
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "input": _a_model,
        "models": _a_weights_file,
        "distributed": _a_model_file,
        "streams": _sources,
        "recipes/18-queue": _sources,
    }
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
