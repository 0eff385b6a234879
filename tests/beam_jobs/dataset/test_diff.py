from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.diff import Difference, diff
from beam_jobs.dataset.manifest import ImageCounts, Manifest, Shard, SplitInfo, TablePart
from beam_jobs.errors import CorruptDataset
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from tests.beam_jobs.make_rows import examined_row, make_facts, make_ref, sha
from tests.make_images import jpeg

PART = TablePart(name="part-0.parquet", rows=0, bytes=0, sha256="")
KINDS = ("added", "removed", "renamed", "relabelled", "changed", "moved", "annotated")


def row(key: str, content: str = "", label: str = "cat", split: str = "train", **fields) -> dict:
    """A row of the image table; what it shows is named by a text."""
    facts = make_facts(content or key, **fields.pop("facts", {}))
    place = {"cluster": "", "near": "", "label_index": 0, "shard": 0, "offset": 0}
    return {**examined_row(make_ref(key, label), facts), **place, "split": split, **fields}


def publish(path: Path, rows: list[dict], options: dict | None = None, label_kind: str = "single") -> str:
    """Writes what is read of a dataset: its table and its manifest, whose shards have a digest of the rows."""
    columns = [{name: one[name] for name in schemas.IMAGES.names} for one in rows]
    schemas.write(str(path / "images" / PART.name), pa.Table.from_pylist(columns, schemas.IMAGES))
    written = [one for one in rows if one["shard"] >= 0]
    splits = {}
    for name in dict.fromkeys(one["split"] for one in written):
        inside = [one for one in written if one["split"] == name]
        labels = [one["label"] for one in inside]
        content = sha(json.dumps(inside, sort_keys=True))
        shard = Shard(name="data-00000-of-00001.tfrecord", records=len(inside), bytes=1, sha256=content)
        splits[name] = SplitInfo(shards=(shard,), classes={label: labels.count(label) for label in sorted({*labels})})
    described = Manifest(
        source="photos",
        options=options or {"seed": 0},
        options_digest="",
        label_kind=label_kind,
        labels=tuple(sorted({one["label"] for one in written})),
        splits=splits,
        counts=ImageCounts(found=len(rows), written=len(written)),
        channels=manifest.ChannelStatistics(split="train", mean_rgb=(0.0,) * 3, std_rgb=(1.0,) * 3),
        producer={},
        tables={},
        images=(PART,),
    )
    manifest.write(described, str(path))
    return str(path)


@pytest.fixture
def between(tmp_path):
    """Returns a function that compares two lists of rows."""

    def compare(old: list[dict], new: list[dict], limit: int = 10, **fields) -> Difference:
        return diff(publish(tmp_path / "a", old, **fields), publish(tmp_path / "b", new, **fields), limit)

    return compare


def counts(found: Difference) -> dict[str, int]:
    return {kind: getattr(found, kind).count for kind in KINDS if getattr(found, kind).count}


BASE = [row("a"), row("b"), row("c", label="dog"), row("d", split="eval")]


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ([*BASE[1:], row("e")], {"added": 1, "removed": 1}),
        ([row("z", "a", label="dog"), *BASE[1:]], {"renamed": 1, "relabelled": 1}),
        ([row("a", "other"), *BASE[1:]], {"changed": 1}),
        ([row("a", split="eval"), *BASE[1:]], {"moved": 1}),
        ([row("a", extra='{"age": 3}'), *BASE[1:]], {"annotated": 1}),
        ([row("a", annotations='{"labels": null, "weight": 2.0}'), *BASE[1:]], {"annotated": 1}),
        ([row("b", "a"), row("a", "b"), *BASE[2:]], {"changed": 2}),
        ([{**BASE[0], "shard": -1}, *BASE[1:]], {"removed": 1}),
        ([BASE[2], BASE[3], BASE[0], BASE[1]], {}),
    ],
)
def test_every_kind_of_change_is_counted(between, new, expected):
    found = between(BASE, new)
    assert counts(found) == expected
    assert not found.is_equal


def test_changes_are_listed_in_the_order_of_keys_up_to_a_limit(between):
    new = [row(f"n{n:02d}", label="dog") for n in range(30)][::-1]
    found = between(BASE, [*BASE, *new], limit=3)
    assert found.added.count == 30
    assert [image["key"] for image in found.added.images] == ["n00", "n01", "n02"]
    assert found.added.images[0] == {"key": "n00", "split": "train", "label": "dog"}
    assert len(between(BASE, [*BASE, *new], limit=0).added.images) == 30


def test_both_sides_of_a_change_are_listed(between):
    found = between(BASE, [row("z", "a", label="dog", split="eval"), *BASE[1:]])
    both = {"key": "a", "split": "train", "label": "cat", "new_key": "z", "new_split": "eval", "new_label": "dog"}
    assert found.renamed.images == found.relabelled.images == found.moved.images == (both,)


def test_copies_are_matched_one_to_one_and_those_of_the_same_label_first(between):
    old = [row("1", "x", "cat"), row("2", "x", "dog"), row("3", "x", "dog")]
    found = between(old, [row("7", "x", "dog"), row("8", "x", "cat")])
    assert counts(found) == {"renamed": 2, "removed": 1}
    assert {(one["key"], one["new_key"]) for one in found.renamed.images} == {("1", "8"), ("2", "7")}


def test_other_options_that_store_the_same_source_otherwise_are_told_from_other_images(between):
    stored = row("a", facts={"sha256": sha("smaller"), "source_sha256": sha("a")})
    found = between(BASE, [stored, row("b", "other"), *BASE[2:]])
    assert (found.changed.count, found.stored_otherwise) == (2, 1)


def test_images_of_any_number_of_labels_are_compared_by_all_of_them(between):
    def labelled(key: str, labels: list[str], weight: float = 1.0) -> dict:
        text = json.dumps({"labels": labels, "mask": None, "objects": None, "size": None, "weight": weight})
        return row(key, label="", annotations=text)

    old = [labelled("a", ["x", 'q"]}']), labelled("b", ["x"]), labelled("c", [])]
    new = [labelled("a", ["x", 'q"]]']), labelled("b", ["x"], 2.0), labelled("c", [])]
    found = between(old, new, label_kind="multi")
    assert counts(found) == {"relabelled": 1, "annotated": 1}
    assert found.relabelled.images[0]["label"] == r'["x", "q\"]}"]'
    assert found.annotated.images[0]["key"] == "b"


def test_classes_are_compared_split_by_split(between):
    found = between(BASE, [*BASE, row("e", label="dog"), row("f", label="owl", split="test")])
    (change,) = found.classes["train"]
    assert (change.label, change.old, change.new, round(change.share, 4)) == ("dog", 1, 2, round(2 / 4 - 1 / 3, 4))
    assert [one.label for one in found.classes["test"]] == ["owl"]
    assert "eval" not in found.classes
    assert found.labels == {"added": ("owl",)}
    renumbered = between(BASE, [*BASE, row("e", label="ant")])
    assert renumbered.labels == {"added": ("ant",), "renumbered": ("cat", "dog")}


def test_sizes_are_compared_as_distributions(between):
    old = [row(f"{n}", facts={"height": 100 + n % 5, "mean_rgb": (n, n, n)}) for n in range(40)]
    new = [row(f"{n}", facts={"height": 300 + n % 5, "mean_rgb": (n, n, n)}) for n in range(40)]
    facts = {one.name: one for one in between(old, new).facts["train"]}
    assert facts["height"].jensen_shannon == pytest.approx(1)
    assert (facts["height"].old, facts["height"].new) == ((100, 102, 104), (300, 302, 304))
    assert facts["width"].jensen_shannon == 0
    assert facts["brightness"].jensen_shannon == 0
    assert facts["brightness"].old == (0, 19.5, 39)


def test_options_are_compared_by_their_dotted_names(tmp_path):
    old = publish(tmp_path / "a", BASE, {"seed": 0, "pixels": {"policy": "copy", "side_px": 9}, "gone": 1})
    new = publish(tmp_path / "b", BASE, {"seed": 0, "pixels": {"policy": "raw", "side_px": 9}, "splits": [["a", 1]]})
    found = diff(old, new)
    assert found.digests[0] == found.digests[1]
    assert found.options == {
        "gone": (1, "(not set)"),
        "pixels.policy": ("copy", "raw"),
        "splits": ("(not set)", [["a", 1]]),
    }
    assert not found.is_equal


def test_images_that_are_matched_in_parts_have_the_same_changes(between, monkeypatch):
    random = Random(0)

    def some(count: int) -> list[dict]:
        contents = [str(random.randrange(30)) for _ in range(count)]
        keys = random.sample([f"{number:02d}" for number in range(90)], count)
        return [
            row(key, content, random.choice(["cat", "dog"]), random.choice(["train", "eval"]))
            for key, content in zip(keys, contents, strict=True)
        ]

    old, new = some(60), some(50)
    whole = between(old, new, limit=0)
    monkeypatch.setattr("beam_jobs.dataset.diff._PART_IMAGES", 7)
    assert between(old, new, limit=0) == whole
    assert {"added", "removed", "renamed", "changed"} <= counts(whole).keys()


def test_columns_in_many_pieces_are_one_column(tmp_path):
    rows = [row(f"{n:04d}", label="ab"[n % 2]) for n in range(50)]
    old, new = publish(tmp_path / "a", rows), publish(tmp_path / "b", rows[10:])
    path = str(tmp_path / "b" / "images" / PART.name)
    pq.write_table(schemas.read(path), path, row_group_size=7)
    assert counts(diff(old, new)) == {"removed": 10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(["sha256"]), "columns are missing: sha256"),
        (lambda table: table.set_column(9, "height", pa.array(["x"] * len(table))), "cannot be read: .*'x'"),
    ],
)
def test_a_table_that_is_none_of_ours_is_one_line(tmp_path, change, message):
    old, new = publish(tmp_path / "a", BASE), publish(tmp_path / "b", BASE[1:])
    path = str(tmp_path / "b" / "images" / PART.name)
    schemas.write_table(path, change(schemas.read(path)))
    with pytest.raises(CorruptDataset, match=message):
        diff(old, new)


def test_two_ingests_of_a_folder_that_changed(photos, dataset, tmp_path):
    assert diff(str(dataset), str(shutil.copytree(dataset, tmp_path / "copy"))).is_equal
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    (source / "china" / "000.jpg").rename(source / "flower" / "from_china.jpg")
    (source / "china" / "001.jpg").rename(source / "china" / "renamed.jpg")
    (source / "flower" / "001.jpg").unlink()
    (source / "flower" / "003.jpg").write_bytes(jpeg(91))
    (source / "flower" / "new.jpg").write_bytes(jpeg(77))
    splits = {"train": 0.7, "eval": 0.3}
    run(IngestOptions(source=str(source), out=str(tmp_path / "b"), splits=splits, shards=2))
    found = diff(str(dataset), str(tmp_path / "b"))
    seen = counts(found)
    assert seen.pop("moved", 0) <= 1  # the split is a hash of the content, and one image got another
    assert seen == {"added": 1, "removed": 1, "renamed": 2, "relabelled": 1, "changed": 1}
    assert [(one["key"], one["new_label"]) for one in found.relabelled.images] == [("china/000.jpg", "flower")]
    assert found.options == {}
    assert json.loads(json.dumps(found.to_json()))["equal"] is False
