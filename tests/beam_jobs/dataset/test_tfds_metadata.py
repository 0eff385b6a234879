"""Datasets opened by the real readers of others: TFDS and the tfrecord package for PyTorch."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np

from beam_jobs import ingest
from beam_jobs.dataset import manifest
from beam_jobs.export.options import safe_name
from beam_jobs.images.decode import decode_rgb
from beam_jobs.options import IngestOptions, PixelOptions
from tests import image_table
from tests.command import python
from tests.interop import page

DOCS = Path(__file__).parents[3] / "docs" / "elsewhere.md"


def rows_of(directory: Path) -> dict[str, dict]:
    return {row["key"]: row for row in image_table.read(directory).to_pylist()}


def test_tfds_opens_a_dataset_from_its_directory(dataset, photos):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(dataset))
    published = manifest.load(str(dataset))
    assert {name: info.num_examples for name, info in builder.info.splits.items()} == {
        name: info.records for name, info in published.splits.items()
    }
    assert builder.info.features["image"]["class"]["label"].names == list(published.labels)
    rows, seen = rows_of(dataset), 0
    for split in published.splits:
        for element in builder.as_dataset(split=split):
            image = element["image"]
            key = image["filename"].numpy().decode()
            assert rows[key]["split"] == split
            expected = decode_rgb((photos / key).read_bytes()).numpy()
            np.testing.assert_array_equal(image["encoded"].numpy(), expected)
            assert published.labels[image["class"]["label"].numpy()] == key.split("/")[0]
            np.testing.assert_allclose(image["mean_rgb"].numpy(), rows[key]["mean_rgb"], rtol=1e-6)
            np.testing.assert_allclose(image["brightness"].numpy(), np.mean(rows[key]["mean_rgb"]), rtol=1e-6)
            assert image["aspect_ratio"].numpy() == np.float32(rows[key]["width"] / rows[key]["height"])
            seen += 1
    assert seen == len(rows)


def test_tfds_reads_labels_masks_weights_and_columns(rich):
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(rich))
    images = builder.as_dataset(split="all_images")
    found = {int(e["image"]["filename"].numpy().decode().removeprefix("../../")[0]): e for e in images}
    names = builder.info.features["image"]["class"]["label"].feature.names
    assert [names[i] for i in found[2]["image"]["class"]["label"].numpy()] == ["cat", "dog"]
    assert found[0]["image"]["class"]["label"].numpy().tolist() == []
    mask = found[3]["image"]["segmentation"]["class"]["encoded"].numpy()[..., 0]
    np.testing.assert_array_equal(mask, np.arange(4800).reshape(60, 80) % 5)
    assert found[3]["image"]["weight"].numpy() == 1.5
    assert found[0]["extra"]["age"].numpy().tolist() == []
    assert found[4]["extra"]["age"].numpy().tolist() == [4]
    assert found[4]["extra"]["note"].numpy().tolist() == [b"note 4"]


def test_tfds_gets_raw_pixels_as_bytes(photos, tmp_path):
    import tensorflow_datasets as tfds

    out, pixels = tmp_path / "out", PixelOptions(policy="raw", side_px=16)
    ingest.run(IngestOptions(source=str(photos), out=str(out), pixels=pixels, facts="basic"))
    element = next(iter(tfds.builder_from_directory(str(out)).as_dataset(split="train")))
    assert len(element["image"]["encoded"].numpy()) == 16 * 16 * 3
    assert not {"mean_rgb", "var_rgb", "brightness"} & element["image"].keys()
    assert element["image"]["aspect_ratio"].numpy() == 1.0


def test_the_tfrecord_package_for_pytorch_reads_a_shard(dataset, photos):
    # In a process of its own: its copy of the Example message and TensorFlow's cannot live in one.
    reader = (
        "import hashlib, json, sys\n"
        "from tfrecord.reader import tfrecord_loader\n"
        "wanted = {'image/encoded': 'byte', 'image/filename': 'byte', 'image/class/label': 'int'}\n"
        "for found in tfrecord_loader(sys.argv[1], None, wanted):\n"
        "    digest = hashlib.sha256(bytes(found['image/encoded'])).hexdigest()\n"
        "    print(json.dumps([bytes(found['image/filename']).decode(), digest, int(found['image/class/label'][0])]))\n"
    )
    shard = dataset / "Split-train" / "data-00000-of-00002.tfrecord"
    run = python(reader, shard)
    assert run.returncode == 0, run.stderr
    records = [json.loads(line) for line in run.stdout.splitlines()]
    published = manifest.load(str(dataset))
    assert len(records) == published.splits["train"].shards[0].records
    for key, digest, label in records:
        assert digest == hashlib.sha256((photos / key).read_bytes()).hexdigest()
        assert published.labels[label] == key.split("/")[0]


def test_what_the_documentation_says_of_one_image_is_true(dataset, photos, monkeypatch):
    """The other blocks of the page run with their clients, in `tests/interop`."""
    monkeypatch.chdir(dataset.parent)
    values: dict = {}
    exec(page.code("One image").replace("cat/1.jpg", "china/000.jpg"), values)
    assert values["record"]["image/encoded"] == [(photos / "china" / "000.jpg").read_bytes()]


def test_the_names_in_the_documentation_are_those_of_the_exports():
    table = dict(re.findall(r"^\| `(.+?)` \| `(.+?)`", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert len(table) == 3
    assert table == {key: safe_name(key) for key in table}
