from __future__ import annotations

from beam_jobs.common.strings import listed, plural


def test_counts_have_their_noun():
    assert [plural(count, "image") for count in (0, 1, 1234)] == ["0 images", "1 image", "1,234 images"]
    assert plural(2, "class", "classes") == "2 classes"


def test_of_many_names_the_first_are_told():
    assert listed(["cat", "dog"]) == "2: cat, dog"
    assert listed([str(number) for number in range(1200)], most=2) == "1,200: 0, 1 ..."
