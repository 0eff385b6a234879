from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs import storage
from beam_jobs.stages import resume

VALUES = {"digest": "ab", "bytes": 7, "offsets": [0, 3], "ö": "ä"}


def seal(path: Path, values: dict = VALUES, result: object = None) -> object:
    return resume.Attempt(str(path)).seal(values, lambda: result)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "a.json"
    assert seal(path) is None
    assert resume.read_checked(str(path)) == VALUES
    assert resume.parse_checked(path.read_bytes()) == VALUES


def test_no_cut_and_no_flipped_bit_goes_unseen(tmp_path):
    path = tmp_path / "a.json"
    seal(path)
    data = path.read_bytes()
    for place in range(len(data)):
        with pytest.raises(ValueError, match=r"checksum does not match|line 1 column|codec"):
            resume.parse_checked(data[:place])
        for bit in range(8):
            changed = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
            try:
                assert resume.parse_checked(changed) == VALUES  # a space that became a line end, say
            except ValueError:
                continue


@pytest.mark.parametrize("data", [b"[]", b"{}", b'{"bytes": 7, "check": null}'])
def test_other_json_is_refused(data):
    with pytest.raises(ValueError, match=r"checksum does not match|line 1 column|codec"):
        resume.parse_checked(data)


def attempt(folder: Path, result: object = None, error: type[BaseException] | None = None) -> tuple[object, list[Path]]:
    """Makes an attempt with two files, and returns what its seal gave and the files."""
    with resume.Attempt(str(folder / "a.json")) as made:
        paths = [folder / made.name("a", suffix) for suffix in (".bin", ".txt")]
        for path in paths:
            path.write_bytes(b"bytes")
        if error:
            raise error
        return made.seal({"files": [path.name for path in paths]}, lambda: result), paths


def test_the_first_seal_counts_and_the_files_of_a_later_attempt_go(tmp_path):
    found, paths = attempt(tmp_path)
    assert found is None
    assert attempt(tmp_path, "of the first")[0] == "of the first"
    assert resume.read_checked(str(tmp_path / "a.json")) == {"files": [path.name for path in paths]}
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.json", *paths])


@pytest.mark.parametrize("harm", [lambda path: None, Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_seal_that_stands_for_nothing_is_replaced(tmp_path, harm):
    attempt(tmp_path)
    harm(tmp_path / "a.json")
    found, paths = attempt(tmp_path, None)
    assert (found, resume.read_checked(str(tmp_path / "a.json"))["files"]) == (None, [path.name for path in paths])


def test_an_attempt_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        attempt(tmp_path, error=KeyboardInterrupt)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_after_the_seal_leaves_what_the_seal_names(tmp_path, monkeypatch):
    create = storage.create_exclusive

    def interrupted(path: str, data: bytes) -> bool:
        create(path, data)
        raise KeyboardInterrupt

    monkeypatch.setattr(storage, "create_exclusive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        attempt(tmp_path)
    assert all((tmp_path / name).exists() for name in resume.read_checked(str(tmp_path / "a.json"))["files"])


@pytest.mark.parametrize("seals", [None, {"a.json"}])
def test_what_no_seal_names_is_swept_away(tmp_path, seals):
    _, paths = attempt(tmp_path)
    (tmp_path / "b.json").write_bytes(b"{damaged")
    for name in ("a.0123.bin", "b.0123.bin", f".{0:032x}.tmp"):
        (tmp_path / name).write_bytes(b"of an attempt that was killed")
    resume.sweep_unsealed(str(tmp_path), lambda values: values["files"], seals)
    damaged = [tmp_path / "b.json"] if seals is None else []  # a seal that is wanted is replaced by who wants it
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a.json", *damaged, *paths])
    resume.sweep_unsealed(str(tmp_path / "none"), lambda values: values["files"])
