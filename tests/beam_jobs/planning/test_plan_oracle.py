"""The plan beside a second one: slow, simple, by comparing every two images, and without any code of the product.

What the reference does is what the pages promise: `docs/sources.md` on duplicates, near duplicates, groups, splits of
every class and images that are added, and the hashes of `docs/record-format.md`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from beam_jobs.errors import EmptySplit
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, TableColumns
from tests import image_table
from tests.beam_jobs.loaded_plan import LoadedPlan, make_plan
from tests.beam_jobs.make_rows import examined, make_facts, make_options, make_ref
from tests.beam_jobs.planning.test_plan_append import published
from tests.make_images import crop, encode

KINDS = ("copies", "group", "near duplicates")


@dataclass
class Image:
    """What the reference knows of an image; `place` is the split that it lies in before or after, empty for none."""

    key: str
    label: str
    sha256: str
    dhash: int
    group: str = ""
    split: str = ""
    size: tuple[int, int] = (60, 80)
    mean: tuple[float, ...] = (100.0, 100.0, 100.0)
    variance: tuple[float, ...] = (400.0, 400.0, 400.0)
    new: bool = True
    place: str = ""


@dataclass
class Expected:
    """What the reference plans: the split of each image that is written, and each set that lies in several splits."""

    places: dict[str, str] = field(default_factory=dict)
    leaks: set[tuple[str, frozenset[str]]] = field(default_factory=set)


def alike(one: Image, other: Image, distance: int) -> bool:
    """Returns whether two images look alike, by the rules at the head of `near.py`."""

    def within_a_step(values: tuple[float, ...], others: tuple[float, ...], step: float) -> bool:
        return all(abs(math.floor(a / step) - math.floor(b / step)) <= 1 for a, b in zip(values, others, strict=True))

    apart = ((one.dhash ^ other.dhash) % 2**64).bit_count()
    ones = [(image.dhash % 2**64).bit_count() for image in (one, other)]
    bits = min(min(count, 64 - count) for count in ones)
    shapes = [(math.log(image.size[1] / image.size[0]),) for image in (one, other)]
    deviations = [tuple(math.sqrt(value) for value in image.variance) for image in (one, other)]
    if apart > distance or not within_a_step(*shapes, math.log(1.05)) or not within_a_step(one.mean, other.mean, 16):
        return False
    for least, most, mean, deviation in ((24, 3, 1, 8), (16, 2, 0.5, 2)):
        if bits < least and (
            apart > most or not within_a_step(one.mean, other.mean, mean) or not within_a_step(*deviations, deviation)
        ):
            return False
    return True


def components(count: int, linked: list[tuple[int, int]]) -> list[int]:
    """Returns the smallest member of the set of each item, by walking along the links."""
    found = list(range(count))
    for _ in range(count):
        for one, other in linked:
            found[one] = found[other] = min(found[one], found[other])
    return found


def hash_of(purpose: str, seed: int, text: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8, key=f"{purpose}:{seed}".encode()).digest(), "big"
    )


class Reference:
    """Plans images, the first of them those that lie in the dataset already."""

    def __init__(self, images: list[Image], options: IngestOptions) -> None:
        old = sorted((image for image in images if not image.new), key=lambda image: image.key)
        self.images = old + sorted((image for image in images if image.new), key=lambda image: image.key)
        self.options = options
        self.contents = list(dict.fromkeys(image.sha256 for image in self.images))
        shown = {image.sha256: image for image in reversed(self.images)}
        self.shown = [shown[content] for content in self.contents]
        pairs = itertools.combinations(range(len(self.contents)), 2) if options.near_duplicates != "off" else ()
        close = [(a, b) for a, b in pairs if alike(self.shown[a], self.shown[b], options.near_distance)]
        self.near = components(len(self.contents), close)
        self.written = self._written()
        self.units = self._units()

    def content(self, image: Image) -> int:
        return self.contents.index(image.sha256)

    def _written(self) -> list[Image]:
        gone = set()
        if self.options.near_duplicates == "drop":
            there = {image.sha256 for image in self.images if not image.new}
            stay = [image for image in self.images if image.place]
            for content, image in zip(self.contents, self.shown, strict=True):
                if content not in there:
                    like = any(alike(image, other, self.options.near_distance) for other in stay)
                    gone.add(content) if like else stay.append(image)
        written = []
        for place, image in enumerate(self.images):
            first = next(n for n, other in enumerate(self.images) if other.sha256 == image.sha256)
            copy = self.options.duplicates == "drop" and first != place
            if image.place or (image.new and not copy and image.sha256 not in gone):
                written.append(image)
        return written

    def _units(self) -> dict[str, list[Image]]:
        """Returns name -> images that stay together; the name is what decides."""

        def belong(one: Image, other: Image) -> bool:
            roots = [self.near[self.content(image)] for image in (one, other)]
            near = self.options.near_duplicates == "group" and roots[0] == roots[1]
            return near or one.sha256 == other.sha256 or one.group == other.group != ""

        pairs = itertools.combinations(range(len(self.written)), 2)
        linked = [(a, b) for a, b in pairs if belong(self.written[a], self.written[b])]
        units: dict[int, list[Image]] = {}
        for image, root in zip(self.written, components(len(self.written), linked), strict=True):
            units.setdefault(root, []).append(image)
        return {self._name(members): members for members in units.values()}

    def _name(self, members: list[Image]) -> str:
        if groups := sorted({image.group for image in members} - {""}):
            return f"group:{groups[0]}"
        contents = [self.content(image) for image in members]
        return self.contents[
            min(self.near[one] if self.options.near_duplicates == "group" else one for one in contents)
        ]

    def expected(self) -> Expected:
        """Returns where everything goes, splits being by hash."""
        names = list(self.options.splits)
        total = sum(self.options.splits.values())
        result = Expected()
        for name, members in self.units.items():
            settled = [names.index(one.place) for one in members if one.place]
            asked = [names.index(one.split) for one in members if one.split and not one.place]
            point = hash_of("split", self.options.seed, name) / 2**64
            reach = itertools.accumulate(share / total for share in self.options.splits.values())
            by_hash = next((place for place, edge in enumerate(reach) if point < edge), len(names) - 1)
            place = min(settled or asked or [by_hash])
            for one in members:
                result.places[one.key] = one.place or one.split or names[place]
        result.leaks = self.leaks(result.places)
        return result

    def leaks(self, places: dict[str, str]) -> set[tuple[str, frozenset[str]]]:
        """Returns kind and splits of each set with a new image that lies in several splits."""
        members: dict[tuple[str, str], list[Image]] = {}
        for image in self.written:
            near = self.near[self.content(image)]
            # Copies alone, of one content, are no near duplicates.
            look_alikes = self.options.near_duplicates == "group" and self.near.count(near) > 1
            names = image.sha256, image.group, str(near) if look_alikes else ""
            for kind, name in zip(KINDS, names, strict=True):
                if name:
                    members.setdefault((kind, name), []).append(image)
        found = set()
        for (kind, _), images in members.items():
            where = frozenset(places[image.key] for image in images)
            if len(where) > 1 and any(image.new for image in images):
                found.add((kind, where))
        return found


def images_of(drawn: random.Random, count: int, first: int = 0) -> list[Image]:
    """Draws images of which many are copies, of one group, or look alike."""
    bases = (0x5A5A3C3CA5A5C3C3, 0x0F0F33335555AAAA, 0x1FFFF, 0b111)
    images = []
    for number in range(first, first + count):
        base = drawn.randrange(len(bases))
        content = f"{base} {drawn.randrange(12)}" if drawn.random() < 0.7 else f"{base} own {number}"
        dealt = random.Random(content)
        bits = sum(1 << dealt.randrange(64) for _ in range(dealt.randrange(4)))
        kind = drawn.choice("012")
        images.append(
            Image(
                key=f"{drawn.randrange(1000):03d} {number}",
                label=kind,
                sha256=hashlib.sha256(content.encode()).hexdigest(),
                dhash=((bases[base] ^ bits) + 2**63) % 2**64 - 2**63,
                group=drawn.choice(("", "", "", f"g{kind}", f"h{kind}")),
                mean=(100.0, 100.0, dealt.choice((100.0, 100.6, 101.5, 120.0))),
                variance=(400.0, 400.0, dealt.choice((20.0**2, 20.0**2, 25.0**2, 41.0**2))),
                size=dealt.choice(((60, 80), (60, 82), (60, 90))),
            )
        )
    return images


def options_of(drawn: random.Random) -> IngestOptions:
    splits = drawn.choice(({"a": 1, "b": 1}, {"a": 7, "b": 3}, {"a": 2, "b": 1, "c": 1}))
    return make_options(
        splits=splits,
        seed=drawn.randrange(5),
        duplicates=drawn.choice(("keep", "report", "drop")),
        near_duplicates=drawn.choice(("off", "report", "group", "group", "drop")),
        near_distance=drawn.randrange(6),
    )


def plan_of(images: list[Image], options: IngestOptions, before: LoadedPlan | None = None) -> LoadedPlan:
    """Plans the new images, as an addition to the dataset of an earlier plan when there is one."""
    rows = [
        (
            make_ref(image.key, label=image.label, group=image.group, split=image.split),
            make_facts(
                sha256=image.sha256,
                dhash=image.dhash,
                height=image.size[0],
                width=image.size[1],
                mean_rgb=image.mean,
                var_rgb=image.variance,
            ),
        )
        for image in images
        if image.new
    ]
    if before is None:
        return make_plan(examined(*rows), options)
    return make_plan(examined(*rows), options, existing=published(before), labels=before.labels)


def places_of(plan: LoadedPlan) -> dict[str, str]:
    return {key: split.name for split in plan.splits for key in split.images["key"].to_pylist()}


def leaks_of(plan: LoadedPlan) -> set[tuple[str, frozenset[str]]]:
    return {(leak.kind, frozenset(leak.keys)) for leak in plan.leaks}


@pytest.mark.parametrize("seed", range(24))
def test_the_plan_is_that_of_the_reference_and_so_is_what_is_added(seed):
    drawn = random.Random(seed)
    options, images = options_of(drawn), images_of(drawn, drawn.randrange(6, 20))
    more = images_of(drawn, drawn.randrange(1, 12), first=100)
    for image in (*images, *more):
        image.split = drawn.choice(("", "", "", *options.splits)) if seed % 3 == 0 else ""
    reference = Reference(images, options).expected()
    if set(reference.places.values()) != set(options.splits):
        with pytest.raises(EmptySplit):
            plan_of(images, options)
        return
    plan = plan_of(images, options)
    assert places_of(plan) == reference.places
    assert leaks_of(plan) == reference.leaks
    assert plan.near_unsearched == 0
    for split in plan.splits:
        keys = split.images["key"].to_pylist()
        assert keys == sorted(keys, key=lambda key: (hash_of("order", options.seed, key), key))
    old = [replace(image, new=False, place=reference.places.get(image.key, "")) for image in images]
    later = replace(options, near_duplicates=drawn.choice((options.near_duplicates, "group")))
    added = plan_of(more, later, plan)
    expected = Reference([*old, *more], later).expected()
    before = {image.key: image.place for image in old if image.place}
    assert {**before, **places_of(added)} == expected.places
    assert leaks_of(added) == expected.leaks


def test_an_ingest_of_files_and_what_is_added_to_it_are_those_of_the_reference(tmp_path):
    options = IngestOptions(
        source=str(tmp_path / "table.csv"),
        out=str(tmp_path / "dataset"),
        columns=TableColumns(group="owner"),
        splits={"train": 1, "eval": 1},
        near_duplicates="group",
        duplicates="drop",
    )
    lines = ["image,label,owner"]
    for number in range(30):
        pixels = crop(number % 17, 64, 64, ("china.jpg", "flower.jpg")[number % 2])
        (tmp_path / f"{number:02d}.jpg").write_bytes(encode(pixels, "JPEG", quality=(95, 80, 95)[number // 17]))
        lines.append(f"{number:02d}.jpg,{'cat dog'.split()[number % 2]},{'owner' if number % 7 == 3 else ''}")
    for count in (20, 30):
        Path(options.source).write_text("\n".join(lines[: count + 1]))
        before = {} if count == 20 else read(options)
        run(replace(options, append=count == 30))
        after = read(options)
        images = [
            replace(image, new=key not in before, place=before[key].place if key in before else "")
            for key, image in after.items()
        ]
        expected = Reference(images, options).expected()
        assert {key: image.place for key, image in after.items() if image.place} == expected.places
    assert len(expected.places) > 20
    assert set(expected.places.values()) == {"train", "eval"}


def read(options: IngestOptions) -> dict[str, Image]:
    """Returns what the image table says of each image."""
    names = ("key", "label", "sha256", "dhash", "group", "height", "width", "mean_rgb", "var_rgb", "split", "shard")
    rows = image_table.read(options.out).select(list(names)).to_pylist()
    assert json.loads(Path(options.out, "dataset.json").read_text())["counts"]["found"] == len(rows)
    return {
        row["key"]: Image(
            key=row["key"],
            label=row["label"],
            sha256=row["sha256"],
            dhash=row["dhash"],
            group=row["group"],
            size=(row["height"], row["width"]),
            mean=tuple(row["mean_rgb"]),
            variance=tuple(row["var_rgb"]),
            place=row["split"] if row["shard"] >= 0 else "",
        )
        for row in rows
    }
