from __future__ import annotations

import pytest

from beam_jobs.dataset import manifest
from components.dataset_report.gallery import DUPLICATES_BUDGET_BYTES, duplicates
from components.dataset_report.shown import ByteBudget, Renderer, open_images
from tests.components.dataset_gate import datasets
from tests.components.dataset_gate.datasets import Row
from tests.components.dataset_report.page import ingest
from tests.make_images import jpeg, png


def found_in(made, column="cluster", budget=None):
    dataset = manifest.load(str(made))
    budget = ByteBudget(DUPLICATES_BUDGET_BYTES if budget is None else budget)
    with open_images(str(made), dataset) as images:
        return duplicates(images, Renderer(str(made), dataset), column, budget)


@pytest.mark.parametrize(("policy", "split"), [("keep", "train"), ("drop", "dropped")])
def test_copies_stand_side_by_side_with_what_became_of_them(tmp_path, policy, split):
    made = ingest(tmp_path, {"cat/a.png": png(1), "dog/b.png": png(1), "dog/c.png": png(2)}, duplicates=policy)
    found = found_in(made)
    (cluster,) = found.clusters
    assert [(member.key, member.labels, member.split) for member in cluster.members] == [
        ("cat/a.png", "cat", "train"),
        ("dog/b.png", "dog", split),
    ]
    assert cluster.members[0].picture == cluster.members[1].picture is not None
    assert (cluster.size, cluster.is_conflict, cluster.is_leak) == (2, True, False)
    assert (found.sets, found.images, found.conflicts, found.leaks) == (1, 2, 1, 0)


def test_leaks_come_first_then_conflicts_then_the_largest(tmp_path):
    rows = [
        *(Row(f"large{copy}.png", png(1), "a", "train") for copy in range(4)),
        *(Row(f"{label}.png", png(2), label, "train") for label in "ab"),
        *(Row(f"{split}.png", png(3), "a", split) for split in ("train", "eval")),
    ]
    found = found_in(datasets.ingest(tmp_path / "made", rows))
    assert [(c.is_leak, c.is_conflict, c.size) for c in found.clusters] == [
        (True, False, 2),
        (False, True, 2),
        (False, False, 4),
    ]
    assert (found.conflicts, found.leaks) == (1, 1)


def test_images_that_look_alike_are_found_by_their_own_column(tmp_path):
    files = {f"a/{number}.jpg": jpeg(5, 200, 300, quality=quality) for number, quality in ((1, 60), (2, 95))}
    made = ingest(tmp_path, files, near_duplicates="drop")
    assert found_in(made).sets == 0
    (cluster,) = found_in(made, "near").clusters
    assert [member.split for member in cluster.members] == ["train", "dropped"]
    # Only the bytes of a copy are known without a record.
    assert [member.picture is None for member in cluster.members] == [False, True]


def test_of_many_the_first_are_shown(tmp_path):
    files = {f"a/{seed:02d}-{copy}.png": png(seed) for seed in range(33) for copy in range(2)}
    files |= {f"a/00-{copy}.png": png(0) for copy in range(2, 9)}
    found = found_in(ingest(tmp_path, files))
    assert (found.sets, found.images, len(found.clusters)) == (33, 73, 30)
    assert (found.clusters[0].size, len(found.clusters[0].members)) == (9, 6)


def test_a_full_page_still_names_the_images(tmp_path):
    (cluster,) = found_in(ingest(tmp_path, {"cat/a.png": png(1), "dog/b.png": png(1)}), budget=10).clusters
    assert [(member.key, member.picture) for member in cluster.members] == [("cat/a.png", None), ("dog/b.png", None)]
