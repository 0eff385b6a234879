"""`python -m benchmarks.options`: compares options of the input pipeline with the same pipeline without them.

All pipelines are measured alternately in one process; results are medians of the rounds. The photographs are those of
`benchmarks.input`; masks, tags and compressed copies are created from them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from benchmarks.input import CROP, add_arguments, line, parse_effort, parse_sources, write
from benchmarks.input_sources import SPLIT, Sources, make_once
from benchmarks.input_turns import Effort, encoded, make_row
from trainer.training.malloc import keep_buffers

if TYPE_CHECKING:
    from trainer.bench.meter import Counts, Subject

SIDE_PX = 224
TEN_CROPS = "decode|resize_short(256)|multi_crop(5, 224)"
ONE_CROP = "decode|resize_short(256)|random_crop(224)|flip"
FEW, SOME, MANY = 1, 8, 500  # shards
_TAGS = ("red", "round", "near", "old", "wet", "tall", "soft")
_COMPRESSION = {"gzip": "GZIP", "zlib": "ZLIB"}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A row of the table.

    Attributes:
      name: name of the row.
      option: makes the subject with the option.
      base: makes the subject to compare it with.
      base_is: description of the base.
    """

    name: str
    option: Callable[[Data], Subject]
    base: Callable[[Data], Subject]
    base_is: str


@dataclass(frozen=True, kw_only=True)
class Data:
    """Datasets and files of the pipelines; each is created on first use.

    Attributes:
      sources: origin of the photographs.
      batch: images per batch.
    """

    sources: Sources
    batch: int

    def photos(self, shards: int = SOME) -> str:
        """Returns a dataset of the photographs with this number of shards."""
        return self._ingested(f"photos in {shards}", self.sources.files("photographs"), shards)

    def pairs(self) -> str:
        """Returns a dataset of the photographs with a mask and up to seven tags each."""
        table = self._file("pairs", lambda path: write_pairs(self.sources.files("photographs"), path))
        return self._ingested("pairs dataset", table / "pairs.jsonl", SOME, extra=("tags",), mask="mask")

    def compressed(self, form: str) -> list[str]:
        """Returns copies of the shards of the photographs, compressed as `gzip` or `zlib`."""
        folder = self._file(form, lambda path: compress(self.shards(), path, _COMPRESSION[form]))
        return sorted(str(path) for path in folder.iterdir())

    def shards(self) -> list[str]:
        """Returns the shards of the photographs."""
        from beam_jobs.dataset import manifest

        return manifest.load(self.photos()).shard_paths(self.photos(), SPLIT)

    def _file(self, name: str, make: Callable[[Path], object]) -> Path:
        return make_once(self.sources.scratch / "options" / name, make)

    def _ingested(self, name: str, source: Path, shards: int, **columns: Any) -> str:
        from beam_jobs import IngestOptions, TableColumns, run

        def make(path: Path) -> None:
            run(
                IngestOptions(
                    source=str(source),
                    out=str(path),
                    splits={SPLIT: 1},
                    shards=shards,
                    columns=TableColumns(**columns),
                    facts="basic",
                )
            )

        return str(self._file(name, make))


def write_pairs(photos: Path, folder: Path) -> None:
    """Writes a table of photographs, each with a mask, an ellipse in an image of the same size, and zero to seven tags.

    Args:
      photos: class folders.
      folder: new directory of links to the photographs, the masks and the table, `pairs.jsonl`.
    """
    folder.mkdir()
    with (folder / "pairs.jsonl").open("w", encoding="utf-8") as table:
        for index, path in enumerate(sorted(photos.rglob("*.jpg"))):
            os.link(path, folder / f"{index}.jpg")
            _mask(path).save(folder / f"{index}.png")
            tags = _TAGS[: index % (len(_TAGS) + 1)]
            row = {"image": f"{index}.jpg", "label": path.parent.name, "mask": f"{index}.png", "tags": tags}
            table.write(json.dumps(row) + "\n")


def _mask(photograph: Path) -> Image.Image:
    with Image.open(photograph) as image:
        width, height = image.size
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).ellipse((width // 4, height // 4, 3 * width // 4, 3 * height // 4), fill=1)
    return mask


def compress(shards: Sequence[str], folder: Path, kind: str) -> None:
    """Writes a compressed copy of each TFRecord file."""
    import tensorflow as tf

    folder.mkdir()
    for path in shards:
        with tf.io.TFRecordWriter(str(folder / os.path.basename(path)), kind) as writer:
            for serialized in tf.data.TFRecordDataset(path):
                writer.write(serialized.numpy())


# --- subjects


def reading_subject(data: Data, path: str, **options: Any) -> Subject:
    """Returns the subject that reads training batches of a dataset."""
    from trainer import FOREVER, InputOptions, make_dataset
    from trainer.bench.meter import dataset_subject

    fields = {"train_ops": CROP, "cache": "none", **options}
    input_options = InputOptions(image_side_px=SIDE_PX, batch_size=data.batch, **fields)
    dataset = make_dataset(path, SPLIT, input_options, training=True, epochs=FOREVER)
    return dataset_subject(f"{path} {options}", dataset)


def files_subject(data: Data, files: Sequence[str]) -> Subject:
    """Returns the subject that reads training batches of TFRecord files."""
    from trainer import FOREVER, InputOptions, make_file_stream
    from trainer.bench.meter import dataset_subject

    options = InputOptions(image_side_px=SIDE_PX, batch_size=data.batch, train_ops=CROP)
    dataset = make_file_stream(files, options, training=True, epochs=FOREVER)
    return dataset_subject(f"files {files[0]}", dataset)


def generator_subject(data: Data) -> Subject:
    """Returns the subject that reads training batches from a generator, which has all images in memory."""
    from trainer import FOREVER, InputOptions, make_stream
    from trainer.bench.meter import dataset_subject

    images = encoded(data.photos())

    def source() -> Iterator[tuple[str, bytes, int]]:
        for index, image in enumerate(images):
            yield str(index), image, 0

    options = InputOptions(image_side_px=SIDE_PX, batch_size=data.batch, train_ops=CROP)
    return dataset_subject("generator", make_stream(source, options, classes=1, training=True, epochs=FOREVER))


def verify_subject(data: Data) -> Subject:
    """Returns the subject that verifies a dataset repeatedly, with all checks, on all cores."""
    from beam_jobs import verify_dataset
    from beam_jobs.common.system import cores
    from trainer.bench.meter import Subject

    path = data.photos()

    def start() -> Counts:
        while True:
            report = verify_dataset(path, threads=cores())
            if report.problems:
                raise RuntimeError(report.problems[0])
            yield float(report.records)

    return Subject(name="verify", start=start)


def decode_subject(data: Data) -> Subject:
    """Returns the subject that decodes photographs from memory on all cores."""
    from trainer.bench.baselines import bare_decode

    return bare_decode("bare decode", encoded(data.photos()))


_WITHOUT = "the same without it"
_PLAIN = "the same files, not compressed"
PAIRS = (
    Pair(
        name="ten crops of each image",
        option=lambda data: reading_subject(data, data.photos(), train_ops=TEN_CROPS),
        base=lambda data: reading_subject(data, data.photos(), train_ops=ONE_CROP),
        base_is="one crop of each image, which is decoded for each",
    ),
    Pair(
        name="images with masks",
        option=lambda data: reading_subject(data, data.pairs(), targets=("mask",)),
        base=lambda data: reading_subject(data, data.pairs()),
        base_is=_WITHOUT,
    ),
    *(
        Pair(
            name=f"{form} files",
            option=lambda data, form=form: files_subject(data, data.compressed(form)),
            base=lambda data: files_subject(data, data.shards()),
            base_is=_PLAIN,
        )
        for form in _COMPRESSION
    ),
    Pair(
        name=f"classes balanced, {MANY} shards",
        option=lambda data: reading_subject(data, data.photos(MANY), balance="uniform"),
        base=lambda data: reading_subject(data, data.photos(MANY)),
        base_is=_WITHOUT,
    ),
    Pair(
        name="images of a generator",
        option=generator_subject,
        base=lambda data: files_subject(data, data.shards()),
        base_is="the same images in TFRecord files",
    ),
    *(
        Pair(
            name=f"a {form} column of tags",
            option=lambda data, form=form: reading_subject(data, data.pairs(), columns=("tags",), columns_form=form),
            base=lambda data: reading_subject(data, data.pairs()),
            base_is=_WITHOUT,
        )
        for form in ("ragged", "dense")
    ),
    Pair(
        name="verify",
        option=verify_subject,
        base=decode_subject,
        base_is="bare decode of the same images, all cores, from memory",
    ),
    *(
        Pair(
            name=f"{shards} shard" + "s" * (shards > 1),
            option=lambda data, shards=shards: reading_subject(data, data.photos(shards)),
            base=lambda data: reading_subject(data, data.photos()),
            base_is=f"{SOME} shards",
        )
        for shards in (FEW, MANY)
    ),
)


def measure(
    sources: Sources, effort: Effort, say: Callable[[str], object] = print, pairs: Sequence[Pair] = PAIRS
) -> dict[str, dict[str, Any]]:
    """Measures all pairs alternately and reports each row.

    Returns:
      name -> rate, base, ratio, base_is and rounds; and the rows of `sizes`.
    """
    from trainer.bench.meter import measure_alternately

    data = Data(sources=sources, batch=effort.batch)
    subjects: dict[str, Subject] = {}
    names = []
    for pair in pairs:
        both = (pair.option(data), pair.base(data))
        subjects |= {subject.name: subject for subject in both}
        names.append([subject.name for subject in both])
    rounds = [measure_alternately(list(subjects.values()), effort.seconds, rounds=1) for _ in range(effort.rounds)]
    results = {}
    for pair, pair_names in zip(pairs, names, strict=True):
        rates = [[costs[name].rate for costs in rounds] for name in pair_names]
        results[pair.name] = make_row(pair.base_is, *rates)
        say(line(pair.name, results[pair.name]))
    return results | sizes(data, say)


def sizes(data: Data, say: Callable[[str], object] = print) -> dict[str, dict[str, Any]]:
    """Returns name -> megabytes (1e6 bytes) of compressed and uncompressed shards, and their ratio."""
    results = {}
    plain = _megabytes(data.shards())
    for form in _COMPRESSION:
        size = _megabytes(data.compressed(form))
        results[name := f"size of {form} files"] = {
            "megabytes": size,
            "base": plain,
            "ratio": size / plain,
            "base_is": _PLAIN,
        }
        say(f"{name:<60}{size:>9,.1f} MB         base {plain:>8,.1f}   ratio {size / plain:6.3f}   {_PLAIN}")
    return results


def _megabytes(files: Sequence[str]) -> float:
    return sum(map(os.path.getsize, files)) / 1e6


def main() -> None:
    """Measures all pairs, prints the results and writes them to `--out`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.options", description=__doc__)
    add_arguments(parser)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    keep_buffers()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            results = measure(parse_sources(arguments, Path(scratch)), parse_effort(arguments))
        except ValueError as error:
            parser.error(str(error))
    if arguments.out:
        write(arguments.out, "options", results)


if __name__ == "__main__":
    main()
