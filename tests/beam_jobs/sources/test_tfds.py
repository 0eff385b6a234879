from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from beam_jobs.dataset import record, tfrecord
from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.image_reader import Reader
from beam_jobs.sources.tfds import TfdsSource
from beam_jobs.types import Annotations, ImageRef
from tests import image_table
from tests.beam_jobs.object_store import SCHEME
from tests.make_images import jpeg

TRAIN, TEST = 5, 3


def make_builder(data_dir: str):
    """Returns a builder of TFDS with features of every kind, 5 images to train and 3 to test."""
    import tensorflow_datasets as tfds

    features = tfds.features

    class Pets(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.2.0")

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=features.FeaturesDict(
                    {
                        "image": features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                        "label": features.ClassLabel(names=["cat", "große dogge"]),
                        "digit": features.ClassLabel(num_classes=3),
                        "tags": features.Sequence(features.ClassLabel(names=["x", "y", "z"])),
                        "meta": {
                            "age": np.int32,
                            "tame": np.bool_,
                            "name": features.Text(),
                            "size": np.float32,
                            "breed": features.ClassLabel(names=["a", "b"]),
                            "back": features.Image(shape=(None, None, 3), encoding_format="png"),
                        },
                        "outline": features.LabeledImage(labels=2, shape=(None, None, 1)),
                        "objects": features.Sequence(
                            {"bbox": features.BBoxFeature(), "label": features.ClassLabel(names=["p"])}
                        ),
                        "scores": features.Sequence(np.float32),
                    }
                ),
            )

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(0, TRAIN), "test": self._generate_examples(100, TEST)}

        def _generate_examples(self, start, count):
            for number in range(start, start + count):
                yield number, example(self.source / f"{number}.jpg", number)

    def example(path: Path, number: int) -> dict:
        pixels = np.full((9, 8, 3), number, np.uint8)
        return {
            "image": str(path),
            "label": number % 2 if number % 5 < 4 else -1,
            "digit": number % 3,
            "tags": [0, 2][: number % 3],
            "meta": {
                "age": number,
                "tame": number % 2 == 0,
                "name": f"näme {number}",
                "size": number / 2,
                "breed": number % 2,
                "back": pixels,
            },
            "outline": np.zeros((9, 8, 1), np.uint8),
            "objects": [{"bbox": features.BBox(0.0, 0.0, 1.0, 1.0), "label": 0}] * (number % 2),
            "scores": [0.5, number],
        }

    Pets.source = Path(data_dir) / "images"
    Pets.source.mkdir()
    for number in [*range(TRAIN), *range(100, 100 + TEST)]:
        (Pets.source / f"{number}.jpg").write_bytes(jpeg(number))
    return Pets(data_dir=data_dir)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A dataset that TFDS itself has prepared. Read only."""
    import tensorflow_datasets as tfds

    builder = make_builder(str(tmp_path_factory.mktemp("tfds")))
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=2))
    return Path(builder.data_dir)


@pytest.fixture
def copied(prepared, tmp_path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(prepared, tmp_path / "copy"))


def edit(copied: Path, name: str, change) -> Path:
    """Changes one of the JSON files of a dataset."""
    values = json.loads((copied / name).read_text())
    change(values)
    (copied / name).write_text(json.dumps(values))
    return copied


def references(source) -> list[ImageRef]:
    return [entry for entry in source.entries() if isinstance(entry, ImageRef)]


def number_of(data: bytes) -> int:
    return next(number for number in [*range(TRAIN), *range(100, 100 + TEST)] if jpeg(number) == data)


def numbers(source) -> dict[str, int]:
    """Returns key -> which of the images it is, of all references."""
    reader = Reader(base=source.base, max_bytes=10**7)
    return {entry.key: number_of(reader.read(entry.uri, entry.slice)) for entry in references(source)}


@pytest.mark.parametrize("place", ["local", "remote"])
def test_a_prepared_dataset_is_read_without_a_changed_byte(prepared, place):
    root = str(prepared) if place == "local" else f"{SCHEME}://{prepared}"
    source = TfdsSource(root, TableColumns(label=""))
    source.check()
    assert (source.base, source.label_kind) == (root, "none")
    assert sorted(numbers(source).values()) == [*range(TRAIN), *range(100, 100 + TEST)]
    keys = [entry.key for entry in source.entries()]
    assert keys[0] == "pets-train.tfrecord-00000-of-00002:0"
    assert len(set(keys)) == TRAIN + TEST
    assert list(TfdsSource(root + "/", TableColumns(label="")).entries()) == list(source.entries())


def test_class_indices_become_names_and_those_that_are_not_known_are_rejected(prepared):
    source = TfdsSource(str(prepared), TableColumns())
    source.check()
    assert source.label_kind == "single"
    found = numbers(source)
    assert {found[entry.key]: entry.label for entry in references(source)} == {
        number: ["cat", "große dogge"][number % 2] for number in (0, 1, 2, 3, 100, 101, 102)
    }
    assert [entry.reason for entry in source.entries() if not isinstance(entry, ImageRef)] == ["no_label"]


def test_the_splits_count_when_a_split_column_is_named(prepared):
    assert {entry.split for entry in references(TfdsSource(str(prepared), TableColumns()))} == {""}
    feature = references(TfdsSource(str(prepared), TableColumns(split="meta/name", key="meta/name")))
    assert feature
    assert all(entry.split == entry.key for entry in feature)
    source = TfdsSource(str(prepared), TableColumns(label="", split="any"))
    source.check()
    found = numbers(source)
    assert {found[entry.key]: entry.split for entry in source.entries()} == {
        **dict.fromkeys(range(TRAIN), "train"),
        **dict.fromkeys(range(100, 100 + TEST), "test"),
    }


def test_other_features_are_columns(prepared):
    names = ("meta/age", "meta/tame", "meta/name", "meta/size", "meta/breed", "digit", "scores", "tags")
    source = TfdsSource(
        str(prepared), TableColumns(label="", extra=names, group="meta/breed", key="meta/name", weight="meta/size")
    )
    source.check()
    entry = next(entry for entry in source.entries() if entry.key == "näme 3")
    assert entry.extra == {
        "meta/age": 3,
        "meta/tame": 0,
        "meta/name": "näme 3",
        "meta/size": 1.5,
        "meta/breed": "b",
        "digit": 0,
        "scores": [0.5, 3.0],
    }
    assert (entry.group, entry.annotations) == ("b", Annotations(weight=1.5))
    assert next(e for e in source.entries() if e.key == "näme 2").extra["tags"] == ["x", "z"]


def without(*names: str):
    def change(values):
        for name in names:
            del values["featuresDict"]["features"][name]

    return change


def test_the_only_sequence_of_classes_is_the_label_when_there_is_no_class(copied):
    features = json.loads((copied / "features.json").read_text())["featuresDict"]["features"]
    del features["meta"]["featuresDict"]["features"]["breed"]
    meta = features["meta"]
    edit(copied, "features.json", without("label", "digit"))
    edit(copied, "features.json", lambda values: values["featuresDict"]["features"].update(meta=meta))
    source = TfdsSource(str(copied), TableColumns())
    source.check()
    assert source.label_kind == "multi"
    assert {entry.annotations.labels for entry in source.entries()} == {(), ("x",), ("x", "z")}


def test_the_only_image_and_class_need_no_names(copied):
    def rename(values):
        features = values["featuresDict"]["features"]
        del features["digit"], features["meta"]
        features["photo"], features["kind"] = features.pop("image"), features.pop("label")

    edit(copied, "features.json", rename)
    (copied / "label.labels.txt").rename(copied / "kind.labels.txt")
    for path in copied.glob("*.tfrecord-*"):
        with path.open("rb") as stream:
            payloads = [payload for _, payload in tfrecord.read_records(stream, path.name)]
        path.write_bytes(b"".join(b"".join(tfrecord.frame(renamed(payload))) for payload in payloads))
    source = TfdsSource(str(copied), TableColumns())
    source.check()
    assert source.label_kind == "single"
    found = numbers(source)
    assert {found[entry.key]: entry.label for entry in references(source)}[101] == "große dogge"


def renamed(payload: bytes) -> bytes:
    features = record.decode(payload)
    return record.encode_example({"photo": ("bytes", features["image"]), "kind": ("int64", features["label"])})


def legacy(feature: dict) -> dict:
    """Returns a feature as TFDS wrote it before 2022."""
    kind = feature["pythonClassName"]
    if "featuresDict" in feature:
        content = {name: legacy(inner) for name, inner in feature["featuresDict"]["features"].items()}
    elif "sequence" in feature:
        content = {"feature": legacy(feature["sequence"]["feature"]), "length": None}
    else:
        content = {}
    return {"type": kind, "content": content}


def test_the_metadata_of_older_versions_are_read(copied):
    features = json.loads((copied / "features.json").read_text())
    (copied / "features.json").write_text(json.dumps(legacy(features)))

    def older(values):
        del values["fileFormat"]
        for split in values["splits"]:
            del split["filepathTemplate"]

    edit(copied, "dataset_info.json", older)
    columns = TableColumns(labels="tags", extra=("meta/breed",))
    assert TfdsSource(str(copied), columns).label_kind == "multi"
    assert len(references(TfdsSource(str(copied), columns))) == TRAIN + TEST


def test_a_published_dataset_is_read_back(dataset):
    source = TfdsSource(str(dataset), TableColumns(split="split"))
    source.check()
    assert source.label_kind == "single"
    rows = image_table.read(dataset).to_pylist()
    found = {entry.key: (entry.label, entry.split) for entry in source.entries()}
    assert found == {row["key"]: (row["label"], row["split"]) for row in rows}


def test_customary_names_count_among_features_of_one_type(dataset):
    kinds = {"thumb": "image_feature.Image", "mood": "class_label_feature.ClassLabel"}

    def add(values):
        for name, kind in kinds.items():
            values["featuresDict"]["features"][name] = {"pythonClassName": f"tensorflow_datasets.core.features.{kind}"}

    source = TfdsSource(str(edit(dataset, "features.json", add)), TableColumns())
    source.check()
    assert {entry.label for entry in source.entries()} == {"china", "flower"}


# ------------------------------------------------------------------ what cannot be read


def set_to(name, value):
    return lambda values: values.update({name: value})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "dataset_info.json",
            set_to("fileFormat", "array_record"),
            "has the format array_record; prepare it with `tfds build --file_format=tfrecord`, or convert it with",
        ),
        ("dataset_info.json", lambda v: v.pop("splits"), "dataset_info.json is not valid TFDS metadata: KeyError"),
        (
            "dataset_info.json",
            set_to("splits", [1]),
            "dataset_info.json is not valid TFDS metadata: 'int' object has no",
        ),
        ("dataset_info.json", set_to("splits", []), "holds no record of tf.train.Example"),
        (
            "dataset_info.json",
            lambda v: v["splits"][0].update(filepathTemplate="../{SPLIT}"),
            "dataset_info.json is not valid TFDS metadata: a shard is called '../train'; prepare it again$",
        ),
        (
            "dataset_info.json",
            lambda v: v["splits"][0].update(shardLengths=["3", "1", "1"]),
            "pets-train.tfrecord-00000-of-00003 cannot be read: No such file or directory$",
        ),
        (
            "dataset_info.json",
            lambda v: v["splits"][0].update(shardLengths=["9", "9"]),
            r"pets-train.tfrecord-00000-of-00002 has \d records, but dataset_info.json has 9; prepare it again$",
        ),
        ("features.json", lambda v: v.clear(), "features.json is not valid TFDS metadata: KeyError"),
        ("features.json", set_to("featuresDict", {"features": {"x": 3}}), "features.json is not valid TFDS metadata: "),
        (
            "features.json",
            without("image", "meta"),
            "has no feature of type Image and none named 'image'; name the image column, one of 'digit', 'label', ",
        ),
        (
            "features.json",
            without("label"),
            "has 2 features of type ClassLabel and none named 'label'; name the label column, one of 'digit', 'meta/",
        ),
    ],
)
def test_metadata_that_cannot_be_used_are_refused(copied, name, change, message):
    source = TfdsSource(str(edit(copied, name, change)), TableColumns())
    with pytest.raises(SourceError, match=f"^{copied}.{message}"):
        list(source.entries())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: .*; give the directory of a version of"),
        (b"[1]", "is not valid TFDS metadata: .*; prepare it again$"),
        (b"\xff", "is not valid TFDS metadata: .*; prepare it again$"),
        (b"[" * 100_000, "is not valid TFDS metadata: .*; prepare it again$"),
    ],
    ids=["gone", "no object", "no text", "deep"],
)
def test_broken_metadata_are_refused(copied, content, message):
    (copied / "dataset_info.json").unlink()
    if content:
        (copied / "dataset_info.json").write_bytes(content)
    with pytest.raises(SourceError, match=rf"dataset_info\.json {message}"):
        TfdsSource(str(copied), TableColumns()).check()


def test_a_class_index_beyond_the_names_is_rejected(copied):
    (copied / "label.labels.txt").write_text("cat\n")
    rejected = [entry for entry in TfdsSource(str(copied), TableColumns()).entries() if not isinstance(entry, ImageRef)]
    assert {entry.reason for entry in rejected} == {"bad_annotation", "no_label"}
    assert "feature 'label' holds 1; it has 1 class names" in {entry.detail for entry in rejected}


def test_metadata_of_more_than_64_mebibytes_are_not_read(copied):
    source = TfdsSource(str(copied), TableColumns())
    with open(f"{source.path}/features.json", "ab") as stream:
        stream.write(b" " * (64 << 20))
    with pytest.raises(
        SourceError, match="features.json is not valid TFDS metadata: it has more than 67,108,864 bytes"
    ):
        source.check()
