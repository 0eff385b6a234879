from __future__ import annotations

from dataclasses import replace

from beam_jobs.dataset import schemas
from beam_jobs.rejects import Reject
from beam_jobs.stages.scan import Scan, scan
from beam_jobs.types import Annotations
from tests.beam_jobs.make_rows import make_ref, parse_ref

SPLITS = {"train": 0.9, "eval": 0.1}
REFS = [make_ref(f"a/{number}.jpg", bytes=10 + number) for number in range(7)]
REJECT = Reject(key="k", uri="u", stage="scan", reason="no_label", detail="d")


def names_of(tmp_path, refs=REFS, salt="salt") -> list[str]:
    return [bucket.name for bucket in scan(refs, str(tmp_path), 3, SPLITS, salt).buckets]


def test_references_are_cut_into_buckets_in_order(tmp_path):
    found = scan(iter(REFS), str(tmp_path), 3, SPLITS, "")
    stored = [[parse_ref(row) for row in schemas.read(bucket.path).to_pylist()] for bucket in found.buckets]
    assert stored == [REFS[:3], REFS[3:6], REFS[6:]]
    assert (found.found, found.bytes, found.reject_files, found.reject_count) == (7, 7 * 10 + 21, (), 0)
    assert [bucket.path for bucket in found.buckets] == [
        str(tmp_path / f"refs-{bucket.name}.parquet") for bucket in found.buckets
    ]


def rejects_of(found: Scan) -> list[dict]:
    return [row for path in found.reject_files for row in schemas.read(path).to_pylist()]


def test_rejects_are_counted_but_in_no_bucket(tmp_path):
    found = scan([REJECT, *REFS[:2], REJECT], str(tmp_path), 3, SPLITS, "")
    assert (found.found, found.reject_count, len(found.buckets)) == (4, 2, 1)
    assert rejects_of(found) == [schemas.reject_row(REJECT)] * 2


def test_many_rejects_are_in_several_files(tmp_path):
    rejects = [replace(REJECT, key=str(number)) for number in range(7)]
    found = scan(rejects, str(tmp_path), 3, SPLITS, "")
    assert (len(found.reject_files), found.reject_count) == (3, 7)
    assert (found.buckets, found.found, found.bytes) == ((), 7, 0)
    assert [row["key"] for row in rejects_of(found)] == list("0123456")


def test_a_split_column_may_name_only_known_splits(tmp_path):
    refs = [make_ref("1", split="eval"), make_ref("2", split="tset"), make_ref("3")]
    found = scan(refs, str(tmp_path), 3, SPLITS, "")
    assert schemas.read(found.buckets[0].path)["key"].to_pylist() == ["1", "3"]
    (reject,) = rejects_of(found)
    assert (reject["key"], reject["stage"], reject["reason"]) == ("2", "scan", "unknown_split")
    assert reject["detail"] == "the split column has 'tset'; known are train, eval"


def test_the_same_source_and_salt_give_the_same_names_and_another_salt_gives_others(tmp_path):
    names = names_of(tmp_path)
    assert names == names_of(tmp_path / "elsewhere")
    assert set(names).isdisjoint(names_of(tmp_path, salt="other"))


def test_the_references_of_an_earlier_scan_stay_for_workers_that_still_read_them(tmp_path):
    (bucket,) = scan(REFS, str(tmp_path), 10, SPLITS, "").buckets
    scan([make_ref("other")], str(tmp_path), 10, SPLITS, "")
    assert [parse_ref(row) for row in schemas.read(bucket.path).to_pylist()] == REFS


def test_a_changed_file_renames_its_bucket_alone(tmp_path):
    before = names_of(tmp_path)
    said = ({"annotations": Annotations(weight=2.0)}, {"slice": "stored:0:9:0:box"}, {"uri": "elsewhere"})
    for change in ({"mtime_ns": 2}, {"bytes": 99}, {"label": "dog"}, {"extra": {"age": 3}}, {"group": "g"}, *said):
        after = names_of(tmp_path, [*REFS[:4], make_ref(**{"key": "a/4.jpg", "bytes": 14, **change}), *REFS[5:]])
        assert [before[index] == after[index] for index in range(3)] == [True, False, True], change
