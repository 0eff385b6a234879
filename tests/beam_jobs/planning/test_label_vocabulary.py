from __future__ import annotations

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.planning.plan import vocabulary
from beam_jobs.types import Annotations, ImageObject
from tests.beam_jobs.loaded_plan import make_plan
from tests.beam_jobs.make_rows import examined, make_facts, make_options, make_ref

EVERYTHING = make_options(splits={"all": 1})


def image(key: str, label: str = "", labels=None, objects=None):
    """Returns an image with a label, labels and objects of some classes; None for not spoken of."""
    items = None if objects is None else tuple(ImageObject(label=name, bbox=(0, 0, 1, 1)) for name in objects)
    spoken = labels is not None or items is not None
    annotations = Annotations(labels=labels, objects=items) if spoken else None
    return make_ref(key, label=label, annotations=annotations), make_facts(key)


SINGLE = [image("1", "dog"), image("2", "cat", objects=("ear", "dog")), image("3", "dog", objects=())]
MULTI = [image("1", labels=("dog", "ear")), image("2", labels=()), image("3", labels=("cat",), objects=("tail",))]
NONE = [image("1"), image("2", objects=("tail", "ear")), image("3", objects=())]


@pytest.mark.parametrize(
    ("kind", "images", "labels", "indices"),
    [
        ("single", SINGLE, ("cat", "dog", "ear"), {"1": 1, "2": 0, "3": 1}),
        ("multi", MULTI, ("cat", "dog", "ear", "tail"), {"1": -1, "2": -1, "3": -1}),
        ("none", NONE, ("ear", "tail"), {"1": -1, "2": -1, "3": -1}),
        ("none", NONE[:1], (), {"1": -1}),
    ],
)
def test_classes_are_those_of_images_and_objects(kind, images, labels, indices):
    plan = make_plan(examined(*images), EVERYTHING, kind)
    assert plan.labels == labels
    assert {row["key"]: row["label_index"] for row in plan.splits[0].images.to_pylist()} == indices


@pytest.mark.parametrize(
    ("known", "expected"),
    [((), ("Zoo", "cat", "dog", "tail", "Ärmel")), (("zebra", "dog"), ("zebra", "dog", "Zoo", "cat", "tail", "Ärmel"))],
)
def test_known_classes_keep_their_places_and_new_ones_follow_sorted(known, expected):
    assert vocabulary(["tail", "dog", "Ärmel", "cat", "Zoo", "dog"], known) == expected


@pytest.mark.parametrize(
    ("kind", "images", "conflicts"),
    [
        ("single", [image("1", "dog"), image("2", "cat")], 1),
        ("single", [image("1", "dog"), image("2", "dog", objects=("ear",))], 0),
        ("multi", [image("1", labels=("cat",)), image("2", labels=("cat", "dog"))], 1),
        ("none", [image("1"), image("2", objects=("ear",))], 0),
    ],
)
def test_copies_conflict_when_their_classes_differ(kind, images, conflicts):
    copies = [(ref, make_facts("same")) for ref, _ in images]
    plan = make_plan(examined(*copies), EVERYTHING, kind)
    assert (plan.clusters, plan.label_conflicts) == (1, conflicts)


def test_an_image_of_several_classes_is_stratified_by_the_rarest():
    often, seldom = ("common", "rare"), ("common",)
    images = [image(f"{n:03d}", labels=often if n % 10 == 0 else seldom) for n in range(100)]
    images += [image(f"none {n}", labels=()) for n in range(10)]
    plan = make_plan(examined(*images), make_options(stratify=True), "multi")
    counts = {}
    for split in plan.splits:
        for text in split.images["annotations"].to_pylist():
            kind = "rare" if "rare" in text else "common" if "common" in text else "none"
            counts[split.name, kind] = counts.get((split.name, kind), 0) + 1
    assert counts == {
        ("train", "common"): 81,
        ("eval", "common"): 9,
        ("train", "rare"): 9,
        ("eval", "rare"): 1,
        ("train", "none"): 9,
        ("eval", "none"): 1,
    }


def test_images_without_classes_cannot_be_stratified():
    with pytest.raises(
        OptionError, match=r"^stratify needs labels, and this source has none; leave out --stratify, or"
    ):
        make_plan(examined(*NONE), make_options(stratify=True), "none")
