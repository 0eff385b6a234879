"""Measures recall and precision of the search for near duplicates: `python -m benchmarks.near [--distance N]`.

Pictures of four kinds are stored as JPEG of quality 95, and again after a change. Prints one row per change with the
recall, the share of pictures that match their changed version; then the precision: the share of matching pairs, among
originals and their recompressed and scaled versions, that show the same picture. The kinds are crops of the two
photographs of scikit-learn, with sides of 300 to 420 pixels, whose precision is undefined because they overlap; 48
tiles of the photographs, enlarged four times and therefore blurred; one to three shapes on white; and small parts of
the crops on white.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Callable, Iterator

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from beam_jobs.images import perceptual_hash
from beam_jobs.planning import near_duplicates

_CROPS = "photographs"
_PICTURES = 300
_SIDE_PX = 400
_GRID = (6, 4)  # columns and rows of tiles of a photograph of 640x427 pixels
_ENLARGED = 4
_STORED_QUALITY = 95

Change = Callable[[Image.Image], bytes]


def main() -> None:
    """Measures every change on every kind of picture and prints the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--distance", type=int, default=3, help="bits in which hashes may differ")
    distance = parser.parse_args().distance
    kinds = {
        _CROPS: list(_crops()),
        "enlarged tiles": list(_tiles()),
        "shapes on white": list(_shapes()),
        "crops on white": list(_cutouts()),
    }
    print(f"distance {distance}: " + ", ".join(f"{len(pictures)} {kind}" for kind, pictures in kinds.items()))
    print(f"{'':<24}" + "".join(f"{kind:>22}" for kind in kinds))
    originals = {kind: [_jpeg(picture, _STORED_QUALITY) for picture in pictures] for kind, pictures in kinds.items()}
    faithful: dict[str, list[list[bytes]]] = {kind: [files] for kind, files in originals.items()}
    for name, change in {**_FAITHFUL, **_OTHERS}.items():
        shares = []
        for kind, pictures in kinds.items():
            changed = [change(picture) for picture in pictures]
            shares.append(_recall(originals[kind], changed, distance))
            if name in _FAITHFUL:
                faithful[kind].append(changed)
        _show(name, shares)
    del faithful[_CROPS]
    _show("precision", [math.nan, *(_precision(versions, distance) for versions in faithful.values())])


def _show(name: str, shares: list[float]) -> None:
    print(f"{name:<24}" + "".join(f"{share:>22.3f}" for share in shares))


def _measure(files: list[bytes]) -> near_duplicates.Appearances:
    pixels = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files]
    means, variances, hashes = zip(*(perceptual_hash.moments_and_dhash(image) for image in pixels), strict=True)
    height, width = np.array([image.shape[:2] for image in pixels]).T
    return near_duplicates.measure(np.array(hashes, np.int64), height, width, np.array(means), np.array(variances))


def _recall(originals: list[bytes], changed: list[bytes], distance: int) -> float:
    count = np.arange(len(originals))
    return float(_measure(originals + changed).alike(count, count + len(originals), distance).mean())


def _precision(versions: list[list[bytes]], distance: int) -> float:
    files = [data for version in versions for data in version]
    shown = np.arange(len(files)) % len(versions[0])
    one, other = np.triu_indices(len(files), 1)
    alike = _measure(files).alike(one, other, distance)
    return float((shown[one] == shown[other])[alike].mean())


def _crops() -> Iterator[Image.Image]:
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(2)
    photographs = load_sample_images().images
    for number in range(_PICTURES):
        pixels = photographs[number % len(photographs)]
        height, width = random.integers(300, 421, 2)
        top, left = random.integers(pixels.shape[0] - height + 1), random.integers(pixels.shape[1] - width + 1)
        yield Image.fromarray(pixels[top : top + height, left : left + width])


def _tiles() -> Iterator[Image.Image]:
    from sklearn.datasets import load_sample_images

    columns, rows = _GRID
    for pixels in load_sample_images().images:
        height, width = pixels.shape[0] // rows, pixels.shape[1] // columns
        for index in range(rows * columns):
            top, left = index // columns * height, index % columns * width
            tile = Image.fromarray(pixels[top : top + height, left : left + width])
            yield tile.resize((width * _ENLARGED, height * _ENLARGED), Image.Resampling.BICUBIC)


def _shapes() -> Iterator[Image.Image]:
    random = np.random.default_rng(0)
    for _ in range(_PICTURES):
        picture = Image.new("RGB", (_SIDE_PX, _SIDE_PX), "white")
        draw = ImageDraw.Draw(picture)
        for _ in range(random.integers(1, 4)):
            x, y, width, height = *random.integers(80, 320, 2).tolist(), *random.integers(15, 110, 2).tolist()
            shape = (draw.ellipse, draw.rectangle)[random.integers(2)]
            shape((x - width, y - height, x + width, y + height), fill=tuple(random.integers(0, 256, 3).tolist()))
        yield picture


def _cutouts() -> Iterator[Image.Image]:
    random = np.random.default_rng(1)
    for crop in _crops():
        picture = Image.new("RGB", (_SIDE_PX, _SIDE_PX), "white")
        width, height = random.integers(60, 260, 2).tolist()
        left, top = (int(random.integers(20, _SIDE_PX - side - 20)) for side in (width, height))
        picture.paste(crop.crop((0, 0, width, height)), (left, top))
        yield picture


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return out.getvalue()


def _compressed(quality: int) -> Change:
    return lambda picture: _jpeg(picture, quality)


def _scaled(factor: float) -> Change:
    return lambda picture: _jpeg(ImageOps.scale(picture, factor), 90)


def _cropped(share: float) -> Change:
    return lambda picture: _jpeg(ImageOps.crop(picture, round(share * min(picture.size))), 90)


def _bordered(share: float) -> Change:
    return lambda picture: _jpeg(ImageOps.expand(picture, round(share * min(picture.size)), "black"), 90)


_FAITHFUL: dict[str, Change] = {
    **{f"quality {quality}": _compressed(quality) for quality in (85, 75, 50)},
    **{f"scaled to {factor:.0%}": _scaled(factor) for factor in (1.5, 0.95, 0.75, 0.5)},
}
_OTHERS: dict[str, Change] = {
    "quality 30": _compressed(30),
    "scaled to 25%": _scaled(0.25),
    **{f"{share:.0%} cut off each side": _cropped(share) for share in (0.01, 0.02, 0.05)},
    **{f"black border of {share:.0%}": _bordered(share) for share in (0.01, 0.02, 0.05)},
    "mirrored": lambda picture: _jpeg(ImageOps.mirror(picture), 90),
}


if __name__ == "__main__":
    main()
