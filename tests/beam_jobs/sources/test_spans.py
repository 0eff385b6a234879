from __future__ import annotations

import os
import shutil

import pytest

from beam_jobs import ingest
from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.options import IngestOptions
from beam_jobs.sources import spans
from beam_jobs.sources.fingerprint import source_fingerprint
from beam_jobs.sources.spans import Resolved
from tests.beam_jobs.entries import make
from tests.beam_jobs.object_store import SCHEME

# Files of the source, pattern, what is asked for (span, version), what is found.
FOUND = {
    "numbers, not text": (["p/9/a", "p/10/a"], "p/{SPAN}", (), ("p/10", 10, None)),
    "zeros are kept": (["p/007/a", "p/06/a"], "p/{SPAN}", (), ("p/007", 7, None)),
    "span nought": (["p/0/a"], "p/{SPAN}", (), ("p/0", 0, None)),
    "digits only": (["p/2/a", "p/new3/a", "p/4.tmp/a", "p/-5/a", "p/٦/a"], "p/{SPAN}", (), ("p/2", 2, None)),
    "no more than int64": (["p/2/a", "p/9999999999999999999/a"], "p/{SPAN}", (), ("p/2", 2, None)),
    "the newest version": (["p/1/v3/a", "p/2/v1/a", "p/2/v2/a"], "p/{SPAN}/v{VERSION}", (), ("p/2/v2", 2, 2)),
    "versions of nought": (["p/2/v0/a"], "p/{SPAN}/v{VERSION}", (), ("p/2/v0", 2, 0)),
    "version first": (["p/v9/1/a", "p/v3/2/a"], "p/v{VERSION}/{SPAN}", (), ("p/v3/2", 2, 3)),
    "widths part numbers": (["p/20240131/a", "p/20240201/a"], "p/{SPAN:6}{VERSION:2}", (), ("p/20240201", 202402, 1)),
    "a file below": (["p/1/l.csv", "p/2/l.csv", "p/3/no.csv"], "p/{SPAN}/l.csv", (), ("p/2/l.csv", 2, None)),
    "a file is no folder": (["p/1/l.csv", "p/2"], "p/{SPAN}/l.csv", (), ("p/1/l.csv", 1, None)),
    "a slash at the end": (["p/1/a"], "p/{SPAN}/", (), ("p/1", 1, None)),
    "a span that is asked for": (["p/01/a", "p/2/a"], "p/{SPAN}", (1,), ("p/01", 1, None)),
    "a version too": (["p/1/v8/a", "p/1/v9/a", "p/2/v1/a"], "p/{SPAN}/v{VERSION}", (1, 8), ("p/1/v8", 1, 8)),
    "twins elsewhere": (["p/1/a", "p/01/a", "p/2/a"], "p/{SPAN}", (), ("p/2", 2, None)),
    "a dot in the pattern is a dot": (["p/1xcsv", "p/0.csv"], "p/{SPAN}.csv", (), ("p/0.csv", 0, None)),
}


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *((name, "") for name in FOUND),
        *((name, f"{SCHEME}://") for name in ("the newest version", "a file below", "a file is no folder")),
    ],
)
def test_a_pattern_means_what_is_there(name, scheme, tmp_path):
    paths, pattern, wanted, (source, span, version) = FOUND[name]
    make(tmp_path, *paths)
    at = f"{scheme}{tmp_path}/"
    assert spans.resolve(at + pattern, *wanted) == Resolved(source=at + source, span=span, version=version)


REFUSED = {
    "many others": ([f"p/{c}/a" for c in "abcdefg"], "p/{SPAN}", (), "holds a, b, c, d, e and 2 more$"),
    "tail is missing": (["p/1/a", "p/2/a"], "p/{SPAN}/l.csv", (), "p/{SPAN}/l.csv matches nothing; .*p holds 1, 2$"),
    "no such span": (["p/1/a", "p/2/a"], "p/{SPAN}", (7,), "p/{SPAN} has no span 7; it has 2, 1$"),
    "no such version": (
        ["p/1/v1/a", "p/2/v2/a"],
        "p/{SPAN}/v{VERSION}",
        (2, 1),
        "span 2 of .*p/{SPAN}/v{VERSION} has no version 1; it has 2$",
    ),
    "twin spans": (["p/1/a", "p/01/a"], "p/{SPAN}", (), "01 and 1 both mean span 1; keep one of them$"),
    "twin versions": (
        ["p/1/v2/a", "p/1/v02/a"],
        "p/{SPAN}/v{VERSION}",
        (),
        "span 1 of .*: 02 and 2 both mean version 2",
    ),
}


@pytest.mark.parametrize(("name", "scheme"), [*((name, "") for name in REFUSED), ("tail is missing", f"{SCHEME}://")])
def test_what_is_not_there_or_there_twice_is_said_in_one_line(name, scheme, tmp_path):
    paths, pattern, wanted, message = REFUSED[name]
    make(tmp_path, *paths)
    with pytest.raises(SourceError, match=message) as caught:
        spans.resolve(f"{scheme}{tmp_path}/{pattern}", *wanted)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "wanted", "message"),
    [
        ("p/v{VERSION}", (), "has {VERSION} without {SPAN}"),
        ("p/{SPAN}/{SPAN:2}", (), "has {SPAN} twice"),
        ("p/{SPAN}/{VERSION}-{VERSION}", (), "has {VERSION} twice"),
        ("p/{SPAN}{VERSION}", (), "has two numbers without a separator"),
        ("p/{SPAN:0}", (), r"has {SPAN:0}; the width must be from 1 to 18 digits"),
        ("p/{SPAN:19}", (), "has {SPAN:19}; the width"),
        ("*/{SPAN}", (), "has a wildcard before or beside"),
        ("p/{SPAN}*", (), "has a wildcard before or beside"),
        ("s3://bucket-{SPAN}/p", (), "in the name of its bucket"),
        ("p/{SPAN}", (-1,), "span is -1; it must be a whole number of at least 0"),
        ("p/{SPAN}", (True,), "span is True; it must be a whole number"),
        ("p/{SPAN}", (1, 2), "version is 2, but the source p/{SPAN} has no {VERSION} to put it in"),
        ("p", (None, 0), "version is 0, but the source p has no {VERSION}"),
    ],
    ids=str,
)
def test_a_pattern_that_cannot_be_followed_is_refused_before_anything_is_looked_at(pattern, wanted, message):
    for refuse in (spans.check, spans.resolve):
        with pytest.raises(OptionError, match=message) as caught:
            refuse(pattern, *wanted)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["photos/*/*.jpg", "{span}", "SPAN"])
def test_a_source_without_a_span_is_span_nought_and_nobody_looks_whether_it_is_there(source):
    assert not spans.has_span(source)
    assert spans.resolve(source) == Resolved(source=source, span=0, version=None)


def test_relative_patterns_stay_relative(tmp_path, monkeypatch):
    make(tmp_path, "3/a", "p/4/a", "p[1]/5/a")
    monkeypatch.chdir(tmp_path)
    assert spans.resolve("{SPAN}").source == "3"
    assert spans.resolve("./p//{SPAN}").source == "./p//4"
    assert spans.resolve("p[1]/{SPAN}").source == "p[1]/5"  # there as it is written, so no wildcard


def test_links_to_directories_count_and_dangling_ones_below_do_not(tmp_path):
    make(tmp_path, "p/1/a")
    (tmp_path / "p" / "3").mkdir()
    os.symlink(tmp_path / "p" / "1", tmp_path / "p" / "2")
    os.symlink(tmp_path / "absent", tmp_path / "p" / "3" / "a")
    assert spans.resolve(f"{tmp_path}/p/{{SPAN}}/a").span == 2


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ("", r"absent/{SPAN} matches nothing; there is no directory .*absent$"),
        (f"{SCHEME}://", "absent holds nothing$"),
        ("ftp://host", "cannot be listed: .*not a supported filesystem"),
    ],
    ids=["local", "remote", "unknown"],
)
def test_a_directory_that_is_not_there_is_named_in_one_line(tmp_path, scheme, message):
    with pytest.raises(SourceError, match=message) as caught:
        spans.resolve(f"{scheme}{tmp_path}/absent/{{SPAN}}")
    assert "\n" not in str(caught.value)


def test_the_ingest_takes_the_span_and_names_it_as_its_source(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "photos" / "span-07")
    open_options = IngestOptions(source=f"{tmp_path}/photos/span-{{SPAN}}", out=str(tmp_path / "out"))
    options = spans.resolve_options(open_options)
    assert options == IngestOptions(source=f"{tmp_path}/photos/span-07", out=str(tmp_path / "out"))
    ingest.run(options)
    assert manifest.load(str(tmp_path / "out")).source == "span-07"
    assert source_fingerprint(options) == source_fingerprint(IngestOptions(source=str(photos), out=""))
    with pytest.raises(SourceError, match="has no span 6; it has 7"):
        spans.resolve_options(open_options, span=6)
