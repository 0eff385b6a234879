"""What each setting of `ingest` changes in the dataset."""

from __future__ import annotations

import itertools
import json
import operator
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from beam_jobs.dataset import record
from beam_jobs.export import descriptions
from beam_jobs.options import About
from beam_jobs.stages import resume
from tests.beam_jobs import s3_server
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.beam_jobs.web_server import Crowd, Handler, Page, WebServer, body, serving, status
from tests.make_images import encode
from tests.settings.published import Ingests, Published
from tests.settings.sources import CATS, DOGS, SERIALS, make_source, noise
from tests.settings.table import Row, grows, row, shrinks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ALL = CATS + DOGS
BUCKET = "s3://settings-of-the-ingest"
HALVES = {"train": 0.5, "eval": 0.5}
PHOTOS = {"ingest.source": "photos", "ingest.splits": HALVES}
TABLE = {"ingest.source": "images.csv", "ingest.splits": HALVES}
MASKS = {**TABLE, "ingest.columns.mask": "mask"}
THIRDS = {**TABLE, "ingest.columns.extra": ["third"]}
PAIRS = {**TABLE, "ingest.columns.image": "pair", "ingest.columns.key": "id", "ingest.columns.split": "part"}
COPIES = {"ingest.source": "copies", "ingest.splits": HALVES}
ODD = {"ingest.source": "odd", "ingest.splits": HALVES, "ingest.max_reject_ratio": 1.0}
NEAR = {**COPIES, "ingest.near_duplicates": "report"}
FAR = {**COPIES, "ingest.near_distance": 8}
WEB = {"ingest.splits": {"train": 1, "eval": 1}, "ingest.http.retries": 0}
FETCHED = {**WEB, "ingest.http.allow_private": True, "ingest.max_reject_ratio": 1.0}
RESIZED = {**PHOTOS, "ingest.pixels.policy": "resize", "ingest.pixels.side_px": 12}


error = operator.attrgetter("error")
splits = operator.attrgetter("splits")


def outcome(found: Published) -> str | int:
    """What ended the ingest, or the number of records."""
    return found.error or len(found.records)


def written(found: Published) -> int:
    return len(found.records)


def stored(found: Published) -> dict[str, bytes]:
    """Key -> bytes of the stored image."""
    return {key: values[record.ENCODED][0] for key, values in found.records.items()}


def sizes(found: Published) -> set[tuple[int, int]]:
    return {(values[record.HEIGHT][0], values[record.WIDTH][0]) for values in found.records.values()}


def decoded_sizes(found: Published) -> set[tuple[int, ...]]:
    return {cv2.imdecode(np.frombuffer(data, np.uint8), -1).shape[:2] for data in stored(found).values()}


def near(found: Published) -> int:
    """Images that are marked to look like another one."""
    return sum(bool(one["near"]) for one in found.rows.values())


def labels(found: Published) -> tuple[str, tuple[str, ...]]:
    return found.manifest.label_kind, found.manifest.labels


def features(name: str) -> Callable[[Published], set[tuple[Any, ...]]]:
    """Returns what observes all values of a feature."""
    return lambda found: {tuple(values) for values in found.feature(name).values()}


def serials(found: Published) -> set[float]:
    return {value for values in found.feature("extra/serial").values() for value in values}


def whole_families(found: Published) -> int:
    """Families of the table whose images all lie in one split."""
    members: dict[str, set[str]] = {}
    for key, split in found.splits.items():
        members.setdefault(str(int(key[-6:-4]) % 5), set()).add(split)
    return sum(len(splits) == 1 for splits in members.values())


def rejects(found: Published) -> list[str]:
    return sorted(found.rejects)


def limit(name: str, value: float, *files: str) -> Row:
    """Returns the row of a limit of images: the files of `odd` that it has rejected beside the broken one."""
    rejected = ["odd/broken.png", *(f"odd/{file}.png" for file in files)]
    return row(f"ingest.limits.{name}", value, rejects, (rejected[:1], rejected), given=ODD)


def about(name: str, value: Any, shown: str) -> Row:
    """Returns the row of a description: whether a text is in the Croissant metadata of the dataset."""

    def described(found: Published) -> bool:
        known = About.from_json(found.manifest.options["about"])
        return shown in json.dumps(descriptions.describe(str(found.path), found.manifest, "", known))

    return row(f"ingest.about.{name}", value, described, (False, True), given=PHOTOS, same=stored)


ROWS = [
    row(
        "ingest.allow_buckets",
        [BUCKET],
        outcome,
        ("SourceError", 9),
        given={"ingest.source": "bucket.csv", "ingest.splits": HALVES},
    ),
    row(
        "ingest.source",
        "odd",
        lambda found: found.manifest.labels,
        (("cat", "dog"), ("odd",)),
        first=("photos",),
        given={"ingest.max_reject_ratio": 0.5, "ingest.splits": HALVES},
    ),
    row("ingest.source_kind", "csv", outcome, ("SourceError", ALL), given={"ingest.source": "images.txt"}),
    row(
        "ingest.splits",
        {"a": 1, "b": 1, "c": 2},
        lambda found: list(found.manifest.splits),
        (["train", "eval"], ["a", "b", "c"]),
        given={"ingest.source": "photos"},
    ),
    row("ingest.seed", 1, splits, given=PHOTOS, same=lambda found: sorted(stored(found).items())),
    row("ingest.shard_mb", 0.02, lambda found: sum(found.shards.values()), grows, given=PHOTOS, same=splits),
    row(
        "ingest.shards",
        3,
        lambda found: found.shards,
        ({"train": 1, "eval": 1}, {"train": 3, "eval": 3}),
        given=PHOTOS,
        same=splits,
    ),
    row(
        "ingest.duplicates",
        "drop",
        lambda found: sum(key.startswith("equal/") for key in found.records),
        (2, 1),
        given=COPIES,
    ),
    *(
        row("ingest.near_duplicates", policy, near, (0, 3), first=("off",), given=FAR, same=splits)
        for policy in ("auto", "report")
    ),
    row("ingest.near_distance", 8, near, (2, 3), given=NEAR),
    row(
        "ingest.stratify",
        True,
        lambda found: found.count("eval") == {"cat": CATS // 2, "dog": DOGS // 2},
        (False, True),
        given=PHOTOS,
    ),
    row("ingest.split_conflicts", "refuse", error, ("", "SplitConflict"), given=PAIRS),
    row("ingest.float32_loss", "refuse", error, ("", "Float32Loss"), given=THIRDS),
    row(
        "ingest.facts",
        "basic",
        lambda found: (bool(found.manifest.channels), features(record.MEAN_RGB)(found) == {()}),
        ((True, False), (False, True)),
        given=PHOTOS,
        same=stored,
    ),
    row(
        "ingest.max_reject_ratio",
        1.0,
        error,
        ("TooManyRejects", ""),
        given={"ingest.source": "odd", "ingest.splits": {"train": 1, "eval": 1}},
    ),
    row(
        "ingest.unreadable",
        "reject",
        lambda found: found.error or found.reasons,
        ("Unreadable", {"unreadable": 1}),
        given={"ingest.source": "sector.csv", "ingest.splits": HALVES, "ingest.max_reject_ratio": 1.0},
    ),
    row("ingest.threads", 3, lambda found: found.threads > 0, (False, True), given=PHOTOS, first=(1,), same=stored),
    row(
        "ingest.plan_memory_mb",
        200,
        lambda found: [memory for memory, _ in found.databases],
        (["1000MB"], ["200MB"]),
        given=PHOTOS,
        same=stored,
    ),
    row(
        "ingest.spill_dir",
        tempfile.gettempdir(),
        lambda found: [directory.removeprefix(str(found.path)) for _, directory in found.databases],
        (["/_work"], [tempfile.gettempdir()]),
        given=PHOTOS,
        same=stored,
    ),
    row("ingest.spill_dir", "nowhere", error, ("", "OptionError"), given=PHOTOS),
    row("ingest.bucket_images", 8, lambda found: found.buckets, (1, ALL // 8), given=PHOTOS, same=stored),
    row("ingest.columns.image", "small", sizes, ({(24, 32)}, {(16, 16)}), given=TABLE),
    row(
        "ingest.columns.label",
        "kind",
        labels,
        (("single", ("cat", "dog")), ("single", ("kind0", "kind1", "kind2"))),
        given=TABLE,
    ),
    row(
        "ingest.columns.labels",
        "tags",
        lambda found: (labels(found), {len(found) for found in features(record.LABEL)(found)}),
        ((("single", ("cat", "dog")), {1}), (("multi", ("cat", "dog", "new", "old")), {2})),
        given=TABLE,
    ),
    row(
        "ingest.columns.label_separator",
        ";",
        labels,
        (("multi", ("cat;new", "cat;old", "dog;new", "dog;old")), ("multi", ("cat", "dog", "new", "old"))),
        given={**TABLE, "ingest.columns.labels": "topics"},
    ),
    row(
        "ingest.columns.mask",
        "mask",
        lambda found: sum(map(bool, found.feature(record.MASK).values())),
        (0, ALL),
        given=TABLE,
    ),
    row(
        "ingest.columns.weight",
        "weight",
        features(record.WEIGHT),
        ({()}, {(0.0,), (1.0,), (2.0,), (3.0,)}),
        given=TABLE,
    ),
    row("ingest.columns.key", "id", lambda found: min(found.records), ("photos/cat/00.png", "id-00"), given=TABLE),
    row("ingest.columns.group", "family", lambda found: whole_families(found) == 5, (False, True), given=TABLE),
    row(
        "ingest.columns.split",
        "part",
        lambda found: all((split == "eval") == bool(int(key[-6:-4]) % 2) for key, split in found.splits.items()),
        (False, True),
        given=TABLE,
    ),
    row(
        "ingest.columns.extra",
        ["price", "city"],
        lambda found: sorted(
            name for name in found.records["photos/cat/03.png"] if name.startswith(record.EXTRA_PREFIX)
        ),
        ([], ["extra/city", "extra/price"]),
        given=TABLE,
    ),
    row(
        "ingest.columns.max_value_bytes",
        4,
        error,
        ("", "TooManyRejects"),  # each city has five letters
        given={**TABLE, "ingest.columns.extra": ["city"]},
    ),
    row("ingest.columns.extra", ["serial"], serials, lambda _, after: after == {*SERIALS} - {SERIALS[5]}, given=TABLE),
    row(
        "ingest.pixels.policy",
        "resize",
        decoded_sizes,
        ({(24, 32)}, {(12, 16)}),
        given={**PHOTOS, "ingest.pixels.side_px": 12},
    ),
    row("ingest.pixels.side_px", 6, decoded_sizes, ({(12, 16)}, {(6, 8)}), given={**RESIZED}, first=(12,)),
    row("ingest.pixels.fit", "inside", decoded_sizes, ({(12, 16)}, {(9, 12)}), given=RESIZED),
    row(
        "ingest.pixels.quality",
        30,
        lambda found: sum(map(len, stored(found).values())),
        shrinks,
        given={**RESIZED, "ingest.source": "jpegs"},
    ),
    row("ingest.limits.mask_classes", 1, error, ("", "TooManyRejects"), given=MASKS),
    row(
        "ingest.limits.mask_ignore", 1, error, ("TooManyRejects", ""), given={**MASKS, "ingest.limits.mask_classes": 1}
    ),
    row("ingest.limits.max_bytes", 3000, lambda found: found.reasons.get("too_many_bytes"), (None, 2), given=ODD),
    limit("max_pixels", 1000, "large", "wide"),
    limit("max_side_px", 50, "wide"),
    limit("min_side_px", 16, "low"),
    limit("max_aspect", 2.5, "wide"),
    row(
        "ingest.limits.max_seconds",
        1.0,
        lambda found: list(found.rejects.values()),
        (["too_slow: it took more than 2 s; max_seconds is 2"], ["too_slow: it took more than 1 s; max_seconds is 1"]),
        given={"ingest.source": "slow", "ingest.max_reject_ratio": 1.0, "ingest.splits": {"train": 1, "eval": 1}},
        first=(2.0,),
    ),
    row("ingest.http.allow_private", True, outcome, ("TooManyRejects", 4), given={**WEB, "ingest.source": "urls.csv"}),
    row(
        "ingest.http.per_host",
        2,
        lambda found: found.at_once,
        (4, 2),
        given={**FETCHED, "ingest.source": "urls.csv"},
        same=stored,
    ),
    row("ingest.http.ignore_robots_tag", True, written, (4, 5), given={**FETCHED, "ingest.source": "kept.csv"}),
    row("ingest.http.retries", 1, written, (4, 5), first=(0,), given={**FETCHED, "ingest.source": "flaky.csv"}),
    row("ingest.http.timeout_s", 0.6, written, (5, 4), first=(5.0,), given={**FETCHED, "ingest.source": "slow.csv"}),
    about("title", "Two Animals", '"alternateName": "Two Animals"'),
    about("creators", ["Ada"], '{"@type": "sc:Person", "name": "Ada"}'),
    about("organizations", ["Acme"], '{"@type": "sc:Organization", "name": "Acme"}'),
    about("license", "MIT", "https://spdx.org/licenses/MIT.html"),
    about("intended_use", "To tell cats from dogs.", '"description": "To tell cats from dogs. '),
    about("citation", "Ada, 2026", '"citeAs": "Ada, 2026"'),
    about("url", "https://a.example", '"url": "https://a.example"'),
    about("date_published", "2026-01-31", '"datePublished": "2026-01-31"'),
]


def flaky(data: bytes) -> Page:
    turns = itertools.count()

    def answer(handler: Handler) -> None:
        page = body(data) if next(turns) % 2 else status(503, Retry_After="0")
        page(handler)

    return answer


def slow(data: bytes) -> Page:
    def answer(handler: Handler) -> None:
        time.sleep(1.5)
        handler.answer(200, data)

    return answer


def write_urls(folder: Path, server: WebServer, crowd: Crowd) -> None:
    """Writes tables of the URLs of four images, and of them and one more."""
    good = [f"/{number}.png" for number in range(4)]
    for number, name in enumerate(good):
        server.pages[name], crowd.data[name] = crowd, encode(noise(400 + number), "PNG")
    server.pages |= {"/flaky.png": flaky(encode(noise(410), "PNG")), "/slow.png": slow(encode(noise(411), "PNG"))}
    server.pages["/kept.png"] = lambda page: page.answer(200, encode(noise(412), "PNG"), X_Robots_Tag="noai")
    tables = {"urls": [], "flaky": ["/flaky.png"], "slow": ["/slow.png"], "kept": ["/kept.png"]}
    for table, more in tables.items():
        lines = [f"{server.url(name)},web" for name in [*good, *more]]
        (folder / f"{table}.csv").write_text("\n".join(["image,label", *lines, ""]))


def write_bucket(folder: Path, bucket: str) -> None:
    """Writes a table of one image in a bucket, beside others."""
    s3_server.put(bucket, "1.png", encode(noise(420), "PNG"))
    rows = [*(f"photos/cat/0{number}.png,cat" for number in range(8)), f"{bucket}/1.png,cat"]
    (folder / "bucket.csv").write_text("\n".join(["image,label", *rows, ""]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ingests]:
    root = tmp_path_factory.mktemp("ingests")
    source, crowd = make_source(root / "source"), Crowd(pause_s=0.1)
    with (
        broken_decoders(tmp_path_factory.mktemp("broken")),
        serving({}) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        write_urls(source, server, crowd)
        write_bucket(source, s3_server.new_bucket(patch, BUCKET.removeprefix("s3://")))
        patch.chdir(source)
        patch.setattr(resume, "WAITS_S", (0.0, 0.0))
        yield Ingests(root / "out", crowd.most_anew)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_setting_of_the_ingest_changes_the_dataset(row: Row, run: Ingests):
    row.check(run)
