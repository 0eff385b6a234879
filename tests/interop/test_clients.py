"""The real clients that need environments of their own, on what the page shows: images arrive as they were written."""

from __future__ import annotations

import hashlib
import io
import re

import numpy as np
import pytest
from PIL import Image

from beam_jobs.dataset import manifest
from beam_jobs.export.options import safe_name
from tests.interop import page
from tests.interop.environments import CLIENTS, REQUIREMENTS, run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]  # the first time, an environment is made


def of_split(rows: dict[str, dict], split: str) -> dict[str, dict]:
    return {key: row for key, row in rows.items() if row["split"] == split}


def test_hugging_face_datasets_has_images_labels_and_splits(place, rows):
    probe = """
import hashlib
from datasets import Image
stored = photos.cast_column("image", Image(decode=False))
names = photos["train"].features["label"].names
found = {split: [[row["key"], names[row["label"]], hashlib.sha256(row["image"]["bytes"]).hexdigest()]
    for row in part] for split, part in stored.items()}
found["sizes"] = [[row["key"], *row["image"].size] for row in photos["train"]]
found["facts"] = sorted(facts["key"])
streamed = load_dataset("dataset_parquet", split="train", streaming=True)
found["streamed"] = [row["key"] for row in streamed]
"""
    found = run("datasets", place, page.code("Hugging Face datasets"), probe)
    for split in ("train", "eval"):
        expected = {(key, row["label"], row["sha256"]) for key, row in of_split(rows, split).items()}
        assert {tuple(one) for one in found[split]} == expected
    assert {tuple(one) for one in found["sizes"]} == {
        (key, row["width"], row["height"]) for key, row in of_split(rows, "train").items()
    }
    assert found["facts"] == sorted(rows)
    assert set(found["streamed"]) == of_split(rows, "train").keys()


def test_webdataset_has_samples_of_image_class_and_features(place, rows):
    probe = """
found = [[described["image/filename"], label, *image.size] for image, label, described in train]
raw = webdataset.WebDataset(tars, shardshuffle=False)
import hashlib
found = [found, {one["__key__"]: hashlib.sha256(one.get("jpg") or one["png"]).hexdigest() for one in raw}]
"""
    samples, stored = run("webdataset", place, page.code("WebDataset"), probe)
    train = of_split(rows, "train")
    assert {tuple(one) for one in samples} == {
        (key, row["label_index"], row["width"], row["height"]) for key, row in train.items()
    }
    assert stored == {safe_name(key): row["sha256"] for key, row in train.items()}


def test_mlcroissant_validates_the_metadata_and_iterates_its_records(place, rows):
    probe = """
issues = described.metadata.issues
found = {"errors": sorted(issues.errors), "warnings": sorted(issues.warnings)}
text = lambda value: value.decode() if isinstance(value, bytes) else value
found["rows"] = [[text(row["images/" + name]) for name in ("key", "split", "label", "sha256")] for row in rows]
found["means"] = [[float(one) for one in row["images/mean_rgb"]] for row in rows]
found["offsets"] = [int(row["images/offset"]) for row in rows]
found["splits"] = [[text(row["splits/name"]), int(row["splits/images"])] for row in described.records("splits")]
found["labels"] = [text(row["labels/name"]) for row in described.records("labels")]
about = described.metadata
found["said"] = {"name": about.name, "license": about.license, "url": about.url, "cite_as": about.cite_as,
    "creators": [[type(one).__name__, one.name] for one in about.creators],
    "date_published": str(about.date_published.date())}
"""
    found = run("mlcroissant", place, page.code("Croissant"), probe)
    assert found["errors"] == []
    assert found["warnings"] == []
    assert found["said"] == {
        "name": "Two_scenes",
        "license": ["https://spdx.org/licenses/CC-BY-4.0.html"],
        "creators": [["Organization", "Example Lab"]],
        "url": "https://example.org/photos",
        "cite_as": "@misc{photos, title={Photos}, year={2026}}",
        "date_published": "2026-01-31",
    }
    assert {tuple(one) for one in found["rows"]} == {
        (key, row["split"], row["label"], row["sha256"]) for key, row in rows.items()
    }
    assert found["offsets"] == [rows[one[0]]["offset"] for one in found["rows"]]
    np.testing.assert_allclose(found["means"], [rows[one[0]]["mean_rgb"] for one in found["rows"]])
    published = manifest.load(str(place / "dataset"))
    assert found["splits"] == [[name, info.records] for name, info in published.splits.items()]
    assert found["labels"] == list(published.labels)


def test_mlcroissant_takes_metadata_of_which_nobody_said_more_and_warns_of_what_is_missing(place):
    from beam_jobs.export.options import ExportOptions
    from beam_jobs.export.run import export

    if not (place / "plain").exists():
        export(ExportOptions(dataset=str(place / "dataset"), to="croissant", out=str(place / "plain")))
    code = "import mlcroissant\nissues = mlcroissant.Dataset('plain/croissant.json').metadata.issues"
    probe = 'found = {"errors": sorted(issues.errors), "warnings": sorted(issues.warnings)}'
    found = run("mlcroissant", place, code, probe)
    assert found["errors"] == []
    recommended = {re.search(r'"\S+[/#](\w+)" is recommended', line)[1] for line in found["warnings"]}
    assert recommended == {"license", "citeAs", "datePublished"}


def test_dali_reads_every_record_by_its_index(place, rows):
    probe = """
@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def stored():
    record = fn.readers.tfrecord(
        path=[f"dataset/{name}" for name in names],
        index_path=[f"dataset_index/{name.replace('.tfrecord', '.idx')}" for name in names],
        features={
            "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
            "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
        },
        name="records",
    )
    return record["image/encoded"], record["image/class/label"]
import hashlib
one = stored()
one.build()
count = one.epoch_size("records")
found = []
for _ in range(count):
    encoded, label = one.run()
    found.append([hashlib.sha256(encoded.at(0).tobytes()).hexdigest(), int(label.at(0)[0])])
found = {"records": found, "shape": images.as_array().shape, "labels": labels.as_array().shape}
"""
    found = run("dali", place, page.code("NVIDIA DALI"), probe)
    assert (found["shape"], found["labels"]) == ([4, 32, 32, 3], [4, 1])
    expected = {(row["sha256"], row["label_index"]) for row in of_split(rows, "train").values()}
    assert {tuple(one) for one in found["records"]} == expected
    assert len(found["records"]) == len(expected)


def test_the_tfrecord_package_feeds_a_loader_of_pytorch(place, rows):
    probe = """
import hashlib
from torch.utils.data import DataLoader
whole = TFRecordDataset(shard, index_path=None, description={**features, "image/filename": "byte"})
found = [
    [bytes(one["image/filename"]).decode(), hashlib.sha256(bytes(one["image/encoded"])).hexdigest(),
     int(one["image/class/label"][0])]
    for one in DataLoader(whole, batch_size=None)
]
found = {"records": found, "first": [*image.size, image.format]}
"""
    found = run("tfrecord", place, page.code("PyTorch"), probe)
    expected = {
        (key, row["sha256"], row["label_index"]) for key, row in of_split(rows, "train").items() if row["shard"] == 0
    }
    assert {tuple(one) for one in found["records"]} == expected
    row = rows[found["records"][0][0]]
    assert found["first"] == [row["width"], row["height"], row["format"].upper()]


def test_the_table_of_the_page_names_the_versions_that_run_here():
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", _all_requirements(), flags=re.MULTILINE))
    named = page.versions()
    of_clients = {"datasets", "mlcroissant", "nvidia-dali-cuda120", "tfrecord", "torch", "webdataset"}
    assert {name: named.get(name) for name in of_clients} == {name: {pinned[name]} for name in of_clients}


def _all_requirements() -> str:
    return "\n".join((REQUIREMENTS / f"{client}.txt").read_text() for client in CLIENTS)


def test_every_client_is_pinned_to_the_last_version():
    loose = [
        line
        for line in filter(None, _all_requirements().splitlines())
        if not re.fullmatch(r"[\w.-]+==\S+|#.*|--no-binary jsonpath-rw", line)
    ]
    assert loose == []


def test_pictures_that_arrive_are_those_that_were_taken(place, photos, rows):
    """What the tests above compare hashes with is the hash of the source."""
    for key, row in rows.items():
        data = (photos / key).read_bytes()
        assert hashlib.sha256(data).hexdigest() == row["sha256"]
        assert Image.open(io.BytesIO(data)).size == (row["width"], row["height"])
