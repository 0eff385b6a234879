from __future__ import annotations

import os

import pytest

from beam_jobs.rejects import Reject, RejectReason
from beam_jobs.sources.base import links_outside, printable, reference, scan_reject
from beam_jobs.types import ImageRef

REF = ImageRef(key="cat/a.jpg", uri="cat/a.jpg", label="cat")


def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return str(tmp_path / "pipe")


def dangling(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    return str(tmp_path / "link")


@pytest.mark.parametrize(
    ("path_of", "fields", "reason", "detail"),
    [
        (str, {"label": ""}, "no_label", "it is in no class folder, or its label is empty"),
        (str, {}, "not_a_file", "it is a directory, pipe, socket or device"),
        (pipe, {}, "not_a_file", "it is a directory, pipe, socket or device"),
        (dangling, {}, "unreadable", "No such file or directory"),
        (
            lambda tmp_path: f"{tmp_path}/a\0b",
            {},
            "unreadable",
            "its path has a null character, which paths cannot contain",
        ),
        (lambda tmp_path: f"{tmp_path}/{'x' * 300}", {}, "unreadable", "File name too long"),
        (str, {"key": "caf\udce9"}, "name_not_utf8", "rename it; keys are stored as UTF-8"),
    ],
)
def test_what_cannot_be_read_is_rejected(tmp_path, path_of, fields, reason, detail):
    ref = ImageRef(**{"key": "k", "uri": "u", "label": "cat", **fields})
    found = reference(path_of(tmp_path), ref)
    assert found == Reject(key=printable(ref.key), uri="u", stage="scan", reason=reason, detail=detail)


def test_a_link_out_of_the_root_is_rejected_only_where_there_is_a_root(tmp_path):
    (tmp_path / "outside.jpg").write_bytes(b"x")
    (tmp_path / "root").mkdir()
    link = tmp_path / "root" / "link.jpg"
    link.symlink_to(tmp_path / "outside.jpg")
    found = reference(str(link), REF, str(tmp_path / "root"))
    assert isinstance(found, Reject)
    assert (found.reason, found.detail) == ("outside_root", "the link points outside the source folder")
    assert isinstance(reference(str(link), REF), ImageRef)


@pytest.mark.parametrize(
    ("target", "out"), [("inside.jpg", False), ("../outside.jpg", True), ("../root-not/x", True), (".", False)]
)
def test_links_are_followed_to_their_end(tmp_path, target, out):
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(target)
    (root / "link of a link").symlink_to("link")
    assert links_outside(str(root / "link"), str(root)) is out
    assert links_outside(str(root / "link of a link"), str(root)) is out


def test_a_reject_of_the_scan_has_a_printable_name():
    reject = scan_reject("caf\udce9", "/data/caf\udce9", RejectReason.NO_LABEL, "d")
    assert reject == Reject(key="caf\\xe9", uri="/data/caf\\xe9", stage="scan", reason="no_label", detail="d")
