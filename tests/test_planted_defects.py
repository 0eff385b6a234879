"""Twenty-two defects put into photographs: a run shows each in its report, and counts the same on the terminal."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.command import feedline
from tests.components.dataset_report.page import Page
from tests.make_images import crop, encode

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

HEIGHT, WIDTH = 192, 256
CLASSES = {"ant": 90, "bee": 40, "cat": 40, "rare": 3}


def photograph(seed: int) -> np.ndarray:
    """A crop in colours of its own, so that no two crops of one place look alike."""
    random = np.random.default_rng(seed)
    pixels = crop(seed, HEIGHT, WIDTH, ("china.jpg", "flower.jpg")[seed % 2])[:, :: random.choice([-1, 1])]
    return (pixels * random.uniform(0.5, 1.0, 3) + random.uniform(0, 40)).clip(0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, **options) -> bytes:
    return encode(pixels, "JPEG", **{"quality": 92, **options})


def plain(level: int, noise: int = 0) -> bytes:
    random = np.random.default_rng(level)
    return encode((level + random.integers(0, noise + 1, (HEIGHT, WIDTH, 3))).astype(np.uint8), "PNG")


def plant(folder: Path) -> Path:
    """Writes classes of photographs with the defects."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    grey = photograph(903)[..., 0]
    files = {
        "ant/cut.jpg": jpeg(photograph(900))[:3000],
        "ant/empty.jpg": b"",
        "ant/text.jpg": b"no image at all\n" * 20,
        "bee/cmyk.jpg": encode(Image.fromarray(photograph(901)).convert("CMYK"), "JPEG"),
        "bee/rotated.jpg": jpeg(photograph(902), exif=rotated.tobytes()),
        "bee/deep.png": encode(Image.fromarray(grey.astype(np.uint16) * 257), "PNG"),
        "bee/alpha.png": encode(np.dstack([photograph(904), grey]), "PNG"),
        "bee/moving.gif": encode(photograph(905), "GIF"),
        "cat/tiny.png": encode(photograph(906)[:6, :6], "PNG"),
        "cat/huge.png": encode(Image.new("1", (9000, 8000)), "PNG"),
        "cat/black.png": plain(0),
        "cat/white.png": plain(255),
        "cat/flat.png": plain(77, noise=2),
        ".hidden/0.jpg": jpeg(photograph(907)),
    }
    seed = 0
    for label, count in CLASSES.items():
        for number in range(count):
            seed += 1
            files[f"{label}/{number:03d}.jpg"] = jpeg(photograph(seed))
    for name, like in [("bee/alike.jpg", 141)] + [(f"ant/near{number}.jpg", number) for number in range(11, 19)]:
        files[name] = jpeg(photograph(like), quality=85)  # of seed 141, a cat
    files |= {"ant/copy.jpg": files["ant/000.jpg"], "bee/copied.jpg": files["ant/001.jpg"]}
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "nothing").mkdir()
    return folder


# Defect -> the section of the report, and what is there about it.
PLANTED = {
    "a file that is cut off": ("rejects", r"ant/cut\.jpg undecodable"),
    "an empty file": ("rejects", r"ant/empty\.jpg empty_file"),
    "a text": ("rejects", r"ant/text\.jpg not_an_image"),
    "a tiny image": ("rejects", r"cat/tiny\.png too_small"),
    "a huge image": ("rejects", r"cat/huge\.png too_large"),
    "CMYK": ("dataset", r"Re-encoded .*1 colour_space"),
    "a rotated image": ("dataset", r"Re-encoded .*1 exif_orientation"),
    "16 bits": ("dataset", r"Re-encoded .*1 sixteen_bit"),
    "transparency": ("dataset", r"Re-encoded .*1 alpha"),
    "a GIF": ("dataset", r"Re-encoded .*1 format"),
    "a black image": ("gate", r"constant or blank in 2 of \d+ images \(cat/black\.png, cat/white\.png\)"),
    "a white image": ("extremes", r"Brightest .* cat/white\.png .*Flattest"),
    "a flat image": ("extremes", r"Flattest .* cat/flat\.png"),
    "a copy in its class": ("duplicates", r" ant/000\.jpg .* ant/copy\.jpg"),
    "a copy in another class": ("gate", r"1 set of equal images in several classes \(such as ant/001\.jpg in ant and"),
    "a near copy over splits": ("gate", r"near leakage : \d sets? of similar images in several splits \(such as ant/"),
    "a near copy in another class": ("gate", r"1 set of similar images in several classes \(such as bee/alike\.jpg in"),
    "a class of three": ("gate", r"small classes : 1 class with fewer than 10 images in train: rare with \d"),
    "an empty folder": ("gate", r"1 class folder holds no good image, so the dataset has no such class: nothing"),
    "a hidden class": ("gate", r"hidden folders : \.hidden/ passed over"),
    "an imbalance": ("gate", r"imbalance : [2-9]\d\.\d : 1 in train \(ant with \d+, rare with \d\)"),
    "a model below the largest class": ("evaluation", r"Always predicting .* not pushed the accuracy"),
}


@dataclass(frozen=True)
class Result:
    """What a run printed, and the words of each section of its report."""

    printed: str
    sections: dict[str, str]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, warm: Path) -> Result:
    folder = tmp_path_factory.mktemp("planted")
    options = ("--image-side", 32, "--epochs", 1, "--batch-size", 16, "--splits", "train=0.7,eval=0.3")
    options += ("--set", "train.learning_rate=0.00001", "--gate", "report")
    work = folder / "work"
    finished = feedline("run", "--images", plant(folder / "photos"), "--root", work, *options, programs=warm)
    assert finished.returncode == 3, finished.stderr
    page = (work / "report.html").read_text(encoding="utf-8")
    shutil.rmtree(work)
    sections = re.finditer(r'<section id="(\w+)".*?</section>', page, re.DOTALL)
    return Result(finished.stdout + finished.stderr, {found[1]: Page(found[0]).words() for found in sections})


@pytest.mark.parametrize("defect", PLANTED)
def test_each_defect_is_in_the_report(result, defect):
    section, pattern = PLANTED[defect]
    assert re.search(pattern, result.sections[section]), result.sections[section]


def test_the_terminal_counts_what_the_report_counts(result):
    printed = {
        name: re.search(rf"^{name} +(.*)$", result.printed, re.MULTILINE)[1]
        for name in ("rejected", "re-encoded", "duplicates", "near duplicates", "gate +and")
    }
    shown = result.sections
    assert printed["rejected"].startswith("5 (")
    assert re.search(r"Rejected 5 images of \d+ found\.", shown["rejects"])
    assert sorted(re.findall(r"1 (\w+)", printed["re-encoded"])) == sorted(
        re.search(r"Re-encoded (.*?) Options", shown["dataset"])[1].replace("1 ", "").split(", ")
    )
    equal, alike = re.findall(r"(\d+ images in \d+ sets)[.;]", shown["duplicates"])
    assert printed["duplicates"].startswith(equal)
    assert printed["near duplicates"].startswith(alike)
    count = re.search(r"(\d+) remarks: these cross no limit", shown["gate"])[1]
    assert printed["gate +and"].startswith(f"{count} remarks")
    assert len(re.findall(r"^remark  ", result.printed, re.MULTILINE)) == int(count)
    found = re.findall(r"^gate +only reports: (.*?): .* in (\w+): (.*); allowed: ", result.printed, re.MULTILINE)
    assert len(found) == int(re.search(r"The gate found (\d+) problem", shown["gate"])[1])
    assert all(f"{check} in {split} ," in shown["gate"] and value in shown["gate"] for check, split, value in found)
