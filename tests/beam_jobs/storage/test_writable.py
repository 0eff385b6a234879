"""Whether a place takes files, and what is said where it does not."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from beam_jobs.errors import OptionError
from beam_jobs.storage.disk import check_file, nearest_existing, refusal
from tests.locked import locked_directory


def test_a_directory_that_is_there_or_can_be_made_takes_files_and_keeps_none(tmp_path):
    assert nearest_existing(str(tmp_path / "a" / "b")) == str(tmp_path)
    assert refusal(str(tmp_path)) is None
    assert refusal(str(tmp_path / "a" / "b")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("x")
    found = refusal(str(tmp_path / "file" / "below"))
    assert (found.reason, found.repair) == (f"{tmp_path}/file is a file", "")


def test_the_command_brings_the_right_that_is_missing():
    with locked_directory("my work") as locked:
        found = refusal(f"{locked.path}/my work")
        whole = refusal(locked.path)
    assert found.reason == f"{locked.path} cannot be written by {locked.user}: Permission denied"
    if locked.repair.startswith("chmod"):
        assert found.repair == whole.repair == locked.repair
    else:
        assert found.repair == f"sudo install -d -o {locked.user} '{locked.path}/my work'"
        assert whole.repair == f"sudo chown {locked.user} {locked.path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="the command is for root, whom sudo makes of a user")
def test_the_command_does_what_it_says(tmp_path):
    with locked_directory("work") as locked:
        place = f"{locked.path}/work"
        found = refusal(place)
        user = os.geteuid()
        os.seteuid(0)
        subprocess.run(found.repair.removeprefix("sudo ").split(), check=True, timeout=60)
        os.seteuid(user)
        assert refusal(place) is None


def test_a_file_to_write_is_checked_before_it_is_written(tmp_path):
    check_file("--out", str(tmp_path / "new" / "pipeline.yaml"))
    check_file("--out", "gs://bucket/pipeline.yaml")
    (tmp_path / "pipeline.yaml").write_text("x")
    check_file("--out", str(tmp_path / "pipeline.yaml"))
    with pytest.raises(OptionError, match=re.escape(f"--out {tmp_path} is a directory; name a file in it")):
        check_file("--out", str(tmp_path))
    with pytest.raises(OptionError, match=r"pipeline.yaml is a file; name a file in another directory"):
        check_file("--out", str(tmp_path / "pipeline.yaml" / "below.yaml"))
    with locked_directory("out") as locked, pytest.raises(OptionError) as raised:
        check_file("--out", f"{locked.path}/out/pipeline.yaml")
    assert str(raised.value) == (
        f"--out {locked.path}/out/pipeline.yaml cannot be written: {locked.path} cannot be written by {locked.user}: "
        f"Permission denied; {locked.repair}"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.yaml"]
