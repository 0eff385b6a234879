from __future__ import annotations

import pytest

from beam_jobs import storage
from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.class_folders import ClassFolders, GlobSource
from beam_jobs.sources.factory import open_source
from tests.beam_jobs import entries, s3_server
from tests.beam_jobs.entries import hidden_in
from tests.beam_jobs.make_rows import make_options


def put(store: str, *names: str) -> str:
    for name in names:
        storage.write_bytes(f"{store}/{name}", name.encode())
    return store


def found_in(source) -> list[tuple[str, str]]:
    return sorted(entries.found_in(source))  # stores have an order of their own


def test_class_folders_in_a_store_are_what_they_are_on_a_disk(store):
    put(store, "d/cat/a.jpg", "d/cat/deep/er/ä b.png", "d/dog/b.jpg", "d/loose.jpg", "d/cat/.x", "d/.git/x", "other/c")
    source = ClassFolders(f"{store}/d")
    source.check()
    assert found_in(source) == [
        ("cat/a.jpg", "cat"),
        ("cat/deep/er/ä b.png", "cat"),
        ("dog/b.jpg", "dog"),
        ("loose.jpg", "! no_label"),
    ]
    assert (source.base, source.label_kind) == (f"{store}/d", "single")
    assert found_in(ClassFolders(f"{store}/d/")) == found_in(source)


def test_references_have_size_and_time_from_the_listing_alone(bucket, monkeypatch):
    put(bucket, "d/cat/a.jpg")
    monkeypatch.setattr(storage, "size", None)
    monkeypatch.setattr(storage, "open_read", None)
    (ref,) = ClassFolders(f"{bucket}/d").entries()
    assert (ref.key, ref.uri, ref.bytes) == ("cat/a.jpg", "cat/a.jpg", 11)
    assert ref.mtime_ns > 1_600_000_000 * 10**9


def test_a_whole_bucket_is_a_source_and_its_order_is_that_of_the_names(bucket):
    put(bucket, "b/2", "a/x/1", "a/b", "a/B", "a!/c")
    assert [entry.key for entry in ClassFolders(bucket).entries()] == ["a!/c", "a/B", "a/b", "a/x/1", "b/2"]


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("**/*.{jpg,png}", "cat/a.jpg cat/deep/c.png dog/a.jpg loose.jpg"),
        ("c*/**/*", "cat/a.jpg cat/deep/c.png"),
        ("*/.*", "cat/.hidden"),
        ("*/", "cat/a.jpg dog/a.jpg"),
    ],
)
def test_globs_match_in_a_store_as_on_a_disk(store, pattern, keys):
    put(store, "d/cat/a.jpg", "d/cat/deep/c.png", "d/cat/.hidden", "d/dog/a.jpg", "d/loose.jpg", "e/cat/a.jpg")
    found = found_in(GlobSource(f"{store}/d/{pattern}", TableColumns(label="")))
    assert found == [(key, "") for key in keys.split()]


def test_hidden_names_of_a_store_are_counted_and_its_folders_once(store):
    put(store, "d/cat/a.jpg", "d/cat/.t/1.jpg", "d/cat/.t/2.jpg", "d/.net/1.jpg", "d/cat/.x.png")
    count, names = hidden_in(ClassFolders(f"{store}/d"))
    assert (count, sorted(names)) == (3, [".net/", "cat/.t/", "cat/.x.png"])


@pytest.mark.parametrize("key", ["cat//a.jpg", "/etc/passwd", "http://host/a.jpg", "cat/../../x"])
def test_a_name_that_leads_elsewhere_is_rejected(bucket, key):
    s3_server.put(bucket, f"d/{key}", b"x")
    put(bucket, "d/dog/b.jpg")
    assert found_in(ClassFolders(f"{bucket}/d")) == sorted([(key, "! outside_root"), ("dog/b.jpg", "dog")])
    assert found_in(GlobSource(f"{bucket}/d/*/b.jpg", TableColumns())) == [("dog/b.jpg", "dog")]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("d/a.jpg",), "holds only files outside of folders; it must hold one folder per class"),
        (("d/.git/x",), "holds nothing; it must hold one folder per class"),
    ],
)
def test_a_store_without_class_folders_is_no_source(store, names, message):
    put(store, *names)
    with pytest.raises(SourceError, match=f"^{store}/d {message}"):
        ClassFolders(f"{store}/d").check()


def test_checking_reads_one_page_of_the_listing(bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")
    put(bucket, *(f"d/cat/{number}" for number in range(7)))
    walk = storage.list_objects
    seen = []
    monkeypatch.setattr(storage, "list_objects", lambda path: (seen.append(found) or found for found in walk(path)))
    ClassFolders(f"{bucket}/d").check()
    assert len(seen) == 1


def test_folders_and_globs_of_stores_are_guessed(store):
    put(store, "d/cat/a.jpg")
    assert open_source(make_options(source=f"{store}/d")) == ClassFolders(f"{store}/d")
    pattern = f"{store}/d/*/*.jpg"
    assert open_source(make_options(source=pattern)) == GlobSource(pattern, TableColumns())
