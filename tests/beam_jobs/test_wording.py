from __future__ import annotations

from beam_jobs.wording import plural


def test_counts_have_their_noun():
    assert [plural(count, "image") for count in (0, 1, 1234)] == ["0 images", "1 image", "1,234 images"]
    assert plural(2, "class", "classes") == "2 classes"
