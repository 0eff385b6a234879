from __future__ import annotations

import pytest

from beam_jobs import sealed

VALUES = {"digest": "ab", "bytes": 7, "offsets": [0, 3], "ö": "ä"}


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "new" / "a.json"
    sealed.write(str(path), VALUES)
    assert sealed.read(str(path)) == VALUES
    assert sealed.loads(path.read_bytes()) == VALUES


def test_no_cut_and_no_flipped_bit_goes_unseen(tmp_path):
    path = tmp_path / "a.json"
    sealed.write(str(path), VALUES)
    data = path.read_bytes()
    for place in range(len(data)):
        with pytest.raises(ValueError, match=r"not those that were written|line 1 column|codec"):
            sealed.loads(data[:place])
        for bit in range(8):
            changed = data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
            try:
                assert sealed.loads(changed) == VALUES  # a space that became a line end, say
            except ValueError:
                continue


@pytest.mark.parametrize("data", [b"", b"[]", b"7", b"null", b"{}", b'{"bytes": 7}', b'{"bytes": 7, "check": null}'])
def test_other_json_is_refused(data):
    with pytest.raises(ValueError, match=r"not those that were written|line 1 column|codec"):
        sealed.loads(data)
