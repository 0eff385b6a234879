"""The source that all rows here are ingested from: a folder of small images, and tables that name them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tests.make_images import encode

HEIGHT, WIDTH = 24, 32
CATS, DOGS = 20, 12  # images of noise of each class
# Strength and seed of the noise that makes two images like the first cat: 1 and 5 bits of the hash away from it.
LOOK_ALIKES = ((0, 0), (3, 93), (10, 95))
SERIALS = [123_456_701 + number for number in range(CATS + DOGS)]  # float32 does not hold all of them
COLUMNS = (
    "image",
    "small",
    "label",
    "kind",
    "tags",
    "topics",
    "mask",
    "weight",
    "id",
    "family",
    "part",
    "price",
    "city",
    "serial",
    "third",
    "pair",
)


def noise(seed: int, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """Returns uint8[height, width, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def alike(strength: int, seed: int) -> np.ndarray:
    """Returns the first cat with noise on it."""
    difference = np.random.default_rng(seed).normal(0, strength, (HEIGHT, WIDTH, 3))
    return np.clip(noise(0) + difference, 0, 255).astype(np.uint8)


def make_source(root: Path) -> Path:
    """Writes everything and returns the folder.

    `photos`: class folders `cat` and `dog`, PNG. `images.csv`, `images.txt`: a row for each, with all `COLUMNS`; one
    row lacks `city` and `serial`. `odd`: class folder `odd`, an image for every limit. `copies`: class folders of two
    equal files, of the `LOOK_ALIKES`, and of others. `jpegs`: class folder of JPEG files. `slow`: one of its images
    never leaves the decoder, where `broken_decoders` are at work. `sector.csv`: four images, and a file of which
    no byte can be read.
    """
    rows = []
    (root / "masks").mkdir(parents=True)
    (root / "small").mkdir()
    for number in range(CATS + DOGS):
        label = "cat" if number < CATS else "dog"
        name = f"photos/{label}/{number:02d}.png"
        _write(root / name, noise(number))
        _write(root / f"small/{number:02d}.png", noise(number, 16, 16))
        _write(root / f"masks/{number:02d}.png", noise(number)[..., 0] % 2)
        rows.append(_row(number, label, name))
    for suffix in ("csv", "txt"):
        with (root / f"images.{suffix}").open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(COLUMNS)
            table.writerows(rows)
    _write_copies(root / "copies")
    _write_odd(root / "odd" / "odd")
    (root / "jpegs" / "jpeg").mkdir(parents=True)
    for number in range(4):
        (root / "jpegs" / "jpeg" / f"{number}.jpg").write_bytes(encode(noise(number), "JPEG", quality=95))
    for number in range(4):
        _write(root / "slow" / "slow" / f"{number}.png", noise(500 + number))
    (root / "slow" / "slow" / "slow.png").write_bytes(encode(noise(510), "PNG") + b"<spin>")
    (root / "sector.png").symlink_to("/proc/self/mem")
    names = [*(f"slow/slow/{number}.png" for number in range(4)), "sector.png"]
    (root / "sector.csv").write_text("\n".join(["image,label", *(f"{name},any" for name in names), ""]))
    return root


def _row(number: int, label: str, name: str) -> list[object]:
    tags = f"{label};{'old' if number % 2 else 'new'}"
    return [
        *(name, f"small/{number:02d}.png", label, f"kind{number % 3}", tags.replace(";", "|"), tags),
        *(f"masks/{number:02d}.png", number % 4, f"id-{number:02d}", f"family{number % 5}"),
        *("eval" if number % 2 else "train", number / 8, f"city{number % 3}" * (number != 5)),
        f"{SERIALS[number]}.0" * (number != 5),  # as pandas writes whole numbers of which one is missing
        *(number / 3, f"photos/cat/{number // 2:02d}.png"),  # no float32; one image of each split
    ]


def _write_copies(root: Path) -> None:
    for number in range(8):
        _write(root / "other" / f"{number}.png", noise(100 + number))
    for name in ("first", "second"):
        _write(root / "equal" / f"{name}.png", noise(200))
    for number, (strength, seed) in enumerate(LOOK_ALIKES):
        _write(root / "alike" / f"{number}.png", alike(strength, seed))


def _write_odd(root: Path) -> None:
    for number in range(4):
        _write(root / f"usual{number}.png", noise(300 + number))
    _write(root / "wide.png", noise(310, 20, 60))
    _write(root / "low.png", noise(311, 10, 14))
    _write(root / "large.png", noise(312, 40, 44))
    (root / "broken.png").write_bytes(b"no image")


def _write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(pixels, "PNG"))
