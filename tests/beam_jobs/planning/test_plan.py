from __future__ import annotations

import os
import random
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from beam_jobs.errors import DiskError, EmptySplit, OptionError
from beam_jobs.options import TableColumns
from beam_jobs.planning import duplicates, image_tables, plan
from beam_jobs.planning.image_tables import open_tables
from beam_jobs.types import Annotations
from tests.beam_jobs.loaded_plan import facts_of, make_plan
from tests.beam_jobs.make_rows import examined, make_facts, make_options, make_ref, many, sha
from tests.command import python

EVERYTHING = make_options(splits={"all": 1})


def rows_of(plan) -> list:
    """Returns all that a plan says, as plain values."""
    splits = [(split.name, split.images.to_pylist(), split.edges) for split in plan.splits]
    others = {name: value for name, value in vars(plan).items() if not isinstance(value, pa.Table) and name != "splits"}
    return [splits, others, plan.dropped.to_pylist(), plan.existing.to_pylist()]


def with_copies() -> list:
    """Returns 400 images: a tenth are copies of the one before, a seventh are of 40 groups, some look alike."""
    rows = []
    for number in range(400):
        content = number - (number % 10 == 9)
        group = f"patient {number % 40}" if number % 7 == 0 else ""
        facts = make_facts(str(content), dhash=0x5A5A_3C3C_A5A5 * (content - content % 5 + 1) + (content % 5 == 1))
        rows.append((make_ref(f"a/{number:04d}.jpg", label="a", group=group), facts))
    return rows


@pytest.mark.parametrize(
    "fields",
    [{"duplicates": "drop"}, {"near_duplicates": "drop"}, {"stratify": True, "near_duplicates": "group"}],
    ids=str,
)
def test_the_order_of_the_rows_does_not_matter(fields):
    rows, options = with_copies(), make_options(shards=3, **fields)
    shuffled = random.Random(1).sample(rows, len(rows))
    assert rows_of(make_plan(examined(*shuffled), options)) == rows_of(make_plan(examined(*rows), options))


def test_the_order_of_rows_that_repeat_a_key_does_not_matter():
    # One file listed twice in a table under two labels: key, uri and content are the same.
    rows = [(make_ref("x.jpg", label=label), make_facts("x")) for label in ("dog", "cat")]
    rows += [(make_ref("y.jpg", annotations=Annotations(weight=weight)), make_facts("y")) for weight in (2.0, 1.0)]
    rows += many(10)
    plans = [make_plan(examined(*each), EVERYTHING) for each in (rows, rows[::-1])]
    assert rows_of(plans[0]) == rows_of(plans[1])


@pytest.mark.parametrize(
    ("images", "fields", "message"),
    [
        (5, {"splits": {"train": 1, "eval": 1e-9}}, "^split 'eval' would hold no image; give it a larger share in "),
        (5, {"splits": {"train": 1, "eval": 1e-9}, "columns": TableColumns(group="owner")}, "never divided: give "),
        (0, {"splits": {"all": 1}}, "^split 'all' would hold no image"),
    ],
    ids=["a small share", "groups", "no image"],
)
def test_an_empty_split_is_named(images, fields, message):
    with pytest.raises(EmptySplit, match=message):
        make_plan(examined(*many(images)), make_options(**fields))


def test_kept_copies_are_counted_and_marked():
    rows = [
        (make_ref("a", label="cat"), make_facts("same")),
        (make_ref("b", label="dog"), make_facts("same")),
        (make_ref("c", label="cat"), make_facts("twice")),
        (make_ref("d", label="cat"), make_facts("twice")),
        (make_ref("e", label="cat"), make_facts("alone")),
    ]
    plan = make_plan(examined(*rows), EVERYTHING)
    clusters = {row["key"]: row["cluster"] for row in plan.splits[0].images.to_pylist()}
    same, twice = sha("same")[:16], sha("twice")[:16]
    assert clusters == {"a": same, "b": same, "c": twice, "d": twice, "e": ""}
    assert (plan.clusters, plan.cluster_images, plan.label_conflicts, len(plan.dropped)) == (2, 4, 1, 0)


def test_the_first_sets_of_copies_are_named_whatever_the_policy():
    rows = [(make_ref(f"{number:03d}"), make_facts(str(number % 30))) for number in range(29, -1, -1)]
    rows += [(make_ref(f"{number:03d}"), make_facts(str(number % 30))) for number in range(30, 59)]
    rows += [(make_ref(f"000 {number:02d}"), make_facts("0")) for number in range(40)]
    for policy in ("keep", "report", "drop"):
        sets = make_plan(examined(*rows), replace(EVERYTHING, duplicates=policy)).duplicate_sets
        assert sets[0] == ("000", *(f"000 {number:02d}" for number in range(19)))  # never more than twenty
        assert sets[1:] == tuple((f"{number:03d}", f"{number + 30:03d}") for number in range(1, 20))


def test_a_repeated_key_is_rejected():
    rows = [(make_ref("same", uri=f"{n}.jpg"), make_facts(str(n))) for n in (2, 0, 1)]
    plan = make_plan(examined(*rows, *many(4)), EVERYTHING)
    detail = "another row has this key; name a key column whose values differ"
    fields = {"stage": "plan", "reason": "duplicate_key", "detail": detail, "bytes": 0}
    assert plan.rejects == [{"key": "same", "uri": uri, **fields} for uri in ("1.jpg", "2.jpg")]
    kept = [row["uri"] for row in plan.splits[0].images.to_pylist() if row["key"] == "same"]
    assert kept == ["0.jpg"]


def test_a_split_that_repeated_keys_leave_empty_is_explained():
    rows = [(make_ref("same", uri=f"{n}.jpg"), make_facts(str(n))) for n in range(40)]
    with pytest.raises(EmptySplit, match=r"or add images; rejected for a repeated key: 39 images$"):
        make_plan(examined(*rows), make_options())


@pytest.mark.parametrize(("fields", "count"), [({"shards": 3}, 3), ({"shards": 99}, 40), ({"shard_mb": 0.01}, 5)])
def test_shards_are_counted_from_the_options(fields, count):
    # 40 images of 500 to 506 bytes and 500 bytes of everything else: 40 kB and a little, so five shards of 10 kB.
    plan = make_plan(examined(*many(40)), replace(EVERYTHING, **fields))
    assert plan.splits[0].shard_count == count


def test_what_is_said_of_an_image_counts_as_bytes_of_its_shard():
    lengthy = Annotations(labels=("x" * 9000,))
    rows = [(make_ref(f"{n}", annotations=None if n % 10 else lengthy), make_facts(str(n))) for n in range(1000)]
    split = make_plan(examined(*rows), replace(EVERYTHING, shards=10), "multi").splits[0]
    sizes = [sum(len(text) + 1500 for text in split.shard(n)["annotations"].to_pylist()) for n in range(10)]
    assert max(sizes) - min(sizes) < 11_000  # a record; cut by the number of images they differ by 100,000


def test_shards_cover_the_split_and_are_balanced_by_bytes():
    rows = [(ref, replace(facts, bytes=100 if n % 2 else 5000)) for n, (ref, facts) in enumerate(many(200))]
    split = make_plan(examined(*rows), replace(EVERYTHING, shards=4)).splits[0]
    parts = [split.shard(index) for index in range(4)]
    assert [key for part in parts for key in part["key"].to_pylist()] == split.images["key"].to_pylist()
    sizes = [sum(part["bytes"].to_pylist()) + 500 * len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 2 * 5500


def test_ctrl_c_ends_a_query():
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            query("SELECT max(hash(range)) % 2 FROM range(100_000_000_000)", before=interrupt.start)
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_fork_of_a_process_that_has_imported_the_plan_makes_one_and_ends():
    program = (
        "import os\n"
        "from tests.beam_jobs.loaded_plan import make_plan\n"
        "from tests.beam_jobs.make_rows import examined, make_options, many\n"
        "if child := os.fork(): print(os.waitpid(child, 0)[1])\n"
        "else: make_plan(examined(*many(40)), make_options())\n"
    )
    assert python(program, check=True, timeout=60).stdout == "0\n"


def test_facts_that_cannot_be_read_are_a_fault_of_their_disk(tmp_path):
    (path,) = facts_of([examined(*many(40))], 0)
    with pytest.raises(
        DiskError, match=rf"No files found that match the pattern .{path}.gone.*; correct the cause, then run"
    ):
        plan.make_plan([path, f"{path}.gone"], EVERYTHING, str(tmp_path))


def test_paths_of_facts_are_no_patterns(tmp_path):
    folder = tmp_path / "run [1] *?'ü{a}"
    folder.mkdir()
    (path,) = facts_of([examined(*many(40))], 0)
    shutil.move(path, folder / "facts.parquet")
    (split,) = plan.make_plan([f"{folder}/facts.parquet"], EVERYTHING, str(folder)).splits
    assert split.images == 40


@pytest.mark.parametrize(
    ("name", "part", "losing", "message"),
    [
        ("_NEW_IMAGES", "FROM facts", "WHERE id > 0", "the facts have 40 rows, and 39 images are planned"),
        (
            "_REJECTED",
            "VARCHAR)",
            "; INSERT INTO rejected VALUES (0, 'a', 'a.jpg')",
            "40 new images are planned, but 39 have rows",
        ),
    ],
)
def test_a_plan_that_loses_rows_is_not_used(tmp_path, monkeypatch, name, part, losing, message):
    monkeypatch.setattr(image_tables, name, getattr(image_tables, name).replace(part, f"{part} {losing}"))
    with pytest.raises(RuntimeError, match=rf"^{message}$"):
        plan.make_plan(facts_of([examined(*many(40))], 0), EVERYTHING, str(tmp_path))


def test_nothing_is_left_where_the_plan_spills(tmp_path):
    query("SELECT 1", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    opened = [os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()]
    assert not [path for path in opened if path.startswith(str(tmp_path))]


def test_a_plan_that_its_memory_does_not_hold_names_the_option():
    statement = "SELECT max(len(texts)) FROM (SELECT list(hash(range)::VARCHAR) AS texts FROM range(2_000_000))"
    with pytest.raises(OptionError, match=r"^plan_memory_mb is 1000, and the plan needs more \(.*\); set a larger --"):
        query(statement, limits="SET memory_limit = '20MB'")


def test_repeated_keys_and_contents_are_found_in_parts(monkeypatch):
    rows = examined(*with_copies(), *with_copies()[:40])
    options = make_options(plan_memory_mb=100, splits={"all": 1})
    whole = make_plan(rows, options)
    monkeypatch.setattr(image_tables, "_HASHES_PER_MB", 1)  # five parts
    monkeypatch.setattr(duplicates, "_CANDIDATE_BYTES", 5_000_000)  # five parts
    assert rows_of(make_plan(rows, options)) == rows_of(whole)
    assert (len(whole.rejects), whole.clusters) == (40, 40)


def query(statement: str, spill: str = "", limits: str = "", before=lambda: None) -> None:
    with open_tables(facts_of([examined(*many(1))], 0), (), make_options(), "single", spill) as images:
        images.run(limits or "SELECT 1")
        before()
        images.number(statement)
