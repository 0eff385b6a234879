"""Makes the golden copies of the release that runs it; see the package.

`python -m tests.golden.make FOLDER`, in a checkout of the release. FOLDER is to be committed as `tests/golden/RELEASE`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from pathlib import Path

from beam_jobs import ingest
from beam_jobs.dataset import manifest
from beam_jobs.options import IngestOptions
from pipeline.pipeline import code_version
from tests.beam_jobs import kill
from tests.make_images import class_folders, crop, encode, jpeg
from trainer.job import Job, fit
from trainer.options import InputOptions, TrainerConfig, TrainOptions
from trainer.training.checkpoint import Checkpoints

PLACE = "/golden"  # what every path in the archives begins with
SPLITS = ("--splits", "train=0.6,eval=0.4", "--shards", "2", "--max-reject-ratio", "0.1")
DATASETS = {
    "copy": ("photos",),
    "resize": ("photos", "--policy", "resize", "--side-px", "32"),
    "raw": ("photos", "--policy", "raw", "--side-px", "24"),
    "coco": ("coco/instances.json",),
    "table": ("table.csv", "--labels-column", "kinds", "--extra-column", "age", "--extra-column", "note"),
    "appended": ("photos",),
}
PACKAGES = ("tfx", "tensorflow", "apache-beam", "ml-metadata", "pyarrow", "pillow", "keras", "numpy")
# What only this run needed: half of the size, and nothing that a later one reads.
_NOT_NEEDED = ("run.log", "report.html", "artifacts/Trainer/model_run", "artifacts/DatasetReport")
PIPELINE = """\
root: /golden/root
ingest: {source: /golden/photos, splits: {train: 0.6, eval: 0.4}, shards: 2, max_reject_ratio: 0.1}
input: {image_side_px: 32, batch_size: 4}
train: {epochs: 1}
evaluate: {above_largest_class: false}
"""
_KINDS = ("Artifact", "Execution", "Context")  # of the database, with a table of properties each
TRAINING = TrainerConfig(
    input=InputOptions(image_side_px=16, batch_size=2, threads=1),
    train=TrainOptions(epochs=4, checkpoint_steps=2, deterministic=True),
)
_LAST_STEP = 7
_MADE = 1_700_000_000  # whole seconds, which an archive keeps: a half-finished ingest knows its images by their times


def make(folder: Path, place: Path) -> None:
    """Makes all archives.

    Args:
      folder: gets them.
      place: an empty directory to work in.
    """
    make_sources(place)
    _pack(folder / "sources.tar.xz", place, ["photos", "more", "coco", "table.csv"])
    for name, arguments in DATASETS.items():
        _feedline(place, "ingest", *arguments, "--out", f"datasets/{name}", *SPLITS)
    _feedline(place, "ingest", "more", "--out", "datasets/appended", "--append")
    digests = {name: manifest.load(str(place / "datasets" / name)).digest for name in DATASETS}
    _pack(folder / "datasets.tar.xz", place, ["datasets"])
    _killed(lambda: run_half(place))
    _pack(folder / "half.tar.xz", place, ["half"])
    _killed(lambda: train(place, _LAST_STEP))
    _pack(folder / "training.tar.xz", place, ["training"])
    (place / "pipeline.yaml").write_text(PIPELINE.replace(PLACE, str(place)))
    _feedline(place, "run", "--config", "pipeline.yaml")
    answers = json.loads(_feedline(place, "predict", "root/serving", *images(place), "--json"))["predictions"]
    for name in _NOT_NEEDED:
        _remove(place / "root" / name)
    move(place, str(place), PLACE)
    _pack(folder / "root.tar.xz", place, ["root", "pipeline.yaml"])
    versions = {name: metadata.version(name) for name in PACKAGES}
    about = {"release": code_version(), "versions": versions, "digests": digests, "training": job(place).digest}
    about["answers"] = [[os.path.relpath(one["path"], place), one["text"], one["probability"]] for one in answers]
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")


def make_sources(place: Path) -> None:
    """Makes twelve photographs in two classes, four more to append, a COCO file with masks and a table."""
    class_folders(place / "photos", per_class=6)
    for number in range(4):
        (place / "more" / "china").mkdir(parents=True, exist_ok=True)
        (place / "more" / "china" / f"new{number}.jpg").write_bytes(jpeg(70 + number))
    (place / "photos" / "flower" / "odd.webp").write_bytes(encode(crop(9, name="flower.jpg"), "WEBP"))
    (place / "photos" / "china" / "broken.png").write_bytes(b"")
    (place / "coco").mkdir()
    box = {"bbox": [8, 12, 32, 30], "segmentation": [[8, 12, 40, 12, 35, 42]], "iscrowd": 0}
    names = {2: "roof", 9: "sky"}
    coco = {"images": [], "annotations": [], "categories": [{"id": kind, "name": names[kind]} for kind in names]}
    lines = ["image,kinds,age,note"]
    for number in range(12):
        (place / "coco" / f"{number}.jpg").write_bytes(jpeg(100 + number))
        coco["images"].append({"id": number, "file_name": f"{number}.jpg", "height": 60, "width": 80})
        kinds = ((2,), (9,), (2, 9))[number % 3]
        for kind in kinds:
            coco["annotations"].append({"id": 10 * number + kind, "image_id": number, "category_id": kind, **box})
        lines.append(f"coco/{number}.jpg,{'|'.join(names[kind] for kind in kinds)},{number},n{number}")
    (place / "coco" / "instances.json").write_text(json.dumps(coco))
    (place / "table.csv").write_text("\n".join(lines) + "\n")
    for path in place.rglob("*"):
        os.utime(path, (_MADE, _MADE))


def images(place: Path) -> list[str]:
    """Returns the photographs that the pushed model was asked about."""
    return sorted(str(path) for path in (place / "photos").rglob("*.[jp][pn]g") if path.stat().st_size)


def half_options(place: Path) -> IngestOptions:
    """Returns the options of the ingest that was killed."""
    source, out = str(place / "photos"), str(place / "half")
    splits = {"train": 0.6, "eval": 0.4}
    return IngestOptions(
        source=source, out=out, splits=splits, shards=2, bucket_images=4, threads=1, max_reject_ratio=0.1
    )


def run_half(place: Path) -> None:
    """Ingests until the first shard is written, and dies."""
    written = place / "half" / "_work" / "written"

    def die(path: str) -> None:
        if any(written.glob("*.json")):
            os.kill(os.getpid(), signal.SIGKILL)

    kill.on_each_moment((str(place / "half"),), die)
    ingest.run(half_options(place))


def job(place: Path) -> Job:
    """Returns the training that was killed."""
    dataset = str(place / "datasets" / "copy")
    return Job(
        config=TRAINING,
        path=dataset,
        dataset=manifest.load(dataset),
        train_split="train",
        eval_split="eval",
        mean_rgb=(120.0, 121.0, 122.0),
        std_rgb=(60.0, 61.0, 62.0),
    )


def train(place: Path, last_step: int = 0) -> list[int]:
    """Trains to the end, or dies after a step; returns the steps that it executed."""
    import keras

    executed: list[int] = []

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            executed.append(batch)
            if len(executed) == last_step:
                os.kill(os.getpid(), signal.SIGKILL)

    fit(job(place), Checkpoints(str(place / "training")), callbacks=(Steps(),))
    return executed


def move(place: Path, before: str, after: str) -> None:
    """Changes the paths in a root and its `pipeline.yaml`, as if it had been made elsewhere.

    Args:
      place: where `root` and `pipeline.yaml` lie.
      before: what the paths begin with.
      after: what they are to begin with.
    """
    for path in (place / "pipeline.yaml", *(place / "root").rglob("*.json")):
        path.write_text(path.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
    with closing(sqlite3.connect(place / "root" / "metadata.sqlite")) as connection:
        for table, column in (("Artifact", "uri"), *((f"{kind}Property", "string_value") for kind in _KINDS)):
            connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (before, after))
        connection.commit()
        connection.execute("VACUUM")  # what was replaced would stay in the free pages


def _killed(work: Callable[[], object]) -> None:
    assert kill.in_a_child(work) == -signal.SIGKILL


def _feedline(place: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, cwd=place, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _pack(archive: Path, place: Path, names: list[str]) -> None:
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for name in names:
            tar.add(place / name, name, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory:
        make(target, Path(directory).resolve())
