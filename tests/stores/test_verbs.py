from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from beam_jobs import storage

pytestmark = pytest.mark.stores

MISSING = "does not exist|[Nn]ot [Ff]ound"


def put(bucket, *names: str) -> str:
    for name in names:
        storage.write_bytes(f"{bucket.url}/{name}", name.encode())
    return bucket.url


def test_what_is_written_is_read_listed_and_measured(bucket):
    url = put(bucket, "d/a b+ä%[1].txt", "d/deep/c", "d2/x", "e")
    assert [(name, size) for name, size, *_ in storage.list_objects(f"{url}/d")] == [
        ("a b+ä%[1].txt", 16),
        ("deep/c", 8),
    ]
    assert storage.read_bytes(f"{url}/d/a b+ä%[1].txt") == "d/a b+ä%[1].txt".encode()
    assert (storage.size(f"{url}/e"), storage.exists(f"{url}/e"), storage.exists(f"{url}/d")) == (1, True, False)
    assert storage.list_dirs(url) == ["d", "d2"]
    assert storage.list_files(f"{url}/d") == ["a b+ä%[1].txt"]


def test_a_large_object_is_written_in_parts_and_read_in_runs(bucket):
    data = bytes(range(256)) * (40 << 12)  # 40 MiB, more than two parts
    with storage.atomic_writer(f"{bucket.url}/large") as stream:
        for begin in range(0, len(data), 1 << 20):
            stream.write(data[begin : begin + (1 << 20)])
    assert storage.digest(f"{bucket.url}/large")[0] == len(data)
    assert storage.read_range(f"{bucket.url}/large", 20 << 20, 1000) == data[20 << 20 : (20 << 20) + 1000]
    assert storage.read_range(f"{bucket.url}/large", len(data) - 3, 9) == data[-3:]
    assert storage.read_range(f"{bucket.url}/large", len(data) + 3, 9) == b""
    sent = [asked.path for asked in bucket.tap.asked if asked.method == "PUT"]
    assert sum(("partNumber" in path and ".tmp" in path) or "upload_id" in path for path in sent) == 3
    with storage.open_read(f"{bucket.url}/large") as stream:
        stream.seek(30 << 20)
        assert stream.read(10) == data[:10]


def test_an_object_appears_whole_under_its_name_or_not_at_all(bucket):
    def write_half() -> None:
        with storage.atomic_writer(f"{bucket.url}/x") as stream:
            stream.write(b"first half")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_half()
    assert bucket.names() == []
    put(bucket, "x")
    with storage.atomic_writer(f"{bucket.url}/x") as stream:
        stream.write(b"second")
        assert storage.read_bytes(f"{bucket.url}/x") == b"x"
    assert storage.read_bytes(f"{bucket.url}/x") == b"second"
    assert bucket.names() == ["x"]


def test_what_is_removed_is_gone_and_its_namesakes_stay(bucket):
    url = put(bucket, "d[1]", "d1", "tree/a", "tree/deep/b", "tree-not")
    storage.remove(f"{url}/d[1]")
    storage.remove(f"{url}/d[1]")
    assert bucket.names() == ["d1", "tree-not", "tree/a", "tree/deep/b"]
    storage.remove_tree(f"{url}/tree")
    storage.remove_tree(f"{url}/tree")
    assert bucket.names() == ["d1", "tree-not"]


def test_an_empty_object_is_an_object(bucket):
    storage.write_bytes(f"{bucket.url}/empty", b"")
    assert storage.read_bytes(f"{bucket.url}/empty") == b""
    assert [(name, size) for name, size, *_ in storage.list_objects(bucket.url)] == [("empty", 0)]


def test_threads_do_not_mix_what_they_read_and_write(bucket):
    names = [f"{bucket.url}/{letter}" for letter in "abcdefgh"]
    data = {name: name[-1:].encode() * 300_000 for name in names}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(storage.write_bytes, names, data.values()))
        assert list(pool.map(storage.read_bytes, names)) == list(data.values())


def test_a_missing_object_and_a_missing_bucket_are_one_line_errors(bucket):
    for path in (f"{bucket.url}/none", f"{bucket.url}-not/none"):
        assert not storage.exists(path)
        for read in (storage.size, storage.read_bytes):
            with pytest.raises(FileNotFoundError, match=MISSING) as told:
                read(path)
            assert "\n" not in str(told.value)
    with pytest.raises(OSError, match=MISSING):
        storage.write_bytes(f"{bucket.url}-not/x", b"x")


def test_denied_access_is_an_error_that_says_so_and_never_an_absence(bucket):
    url = put(bucket, "x")
    bucket.tap.refuse = lambda _: 403
    for touch in (storage.exists, storage.size, storage.read_bytes, lambda path: storage.write_bytes(path, b"")):
        with pytest.raises(OSError, match=r"403|[Dd]enied|Forbidden") as told:
            touch(f"{url}/x")
        assert not isinstance(told.value, FileNotFoundError)
        assert "\n" not in str(told.value)
    with pytest.raises(OSError, match=r"403|[Dd]enied|Forbidden"):
        list(storage.list_objects(url))


def test_a_hiccup_of_the_store_is_not_noticed(bucket):
    url = put(bucket, "x")
    hiccups = iter([503, 503])
    seen = set()

    def once(asked) -> int:
        """Answers the first try of a kind of request, and nothing after it."""
        kind = asked.method, asked.path.partition("?")[0]
        if kind in seen:
            return 0
        seen.add(kind)
        return next(hiccups, 0)

    bucket.tap.refuse = once
    assert storage.size(f"{url}/x") == 1
    assert storage.read_bytes(f"{url}/x") == b"x"
    assert next(hiccups, None) is None, "the store refused less than it should have"
