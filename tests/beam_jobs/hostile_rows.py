"""The table of hostile and odd files: what each is, and what it ends as. `docs/images.md` shows the same table."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageCms

from tests.beam_jobs import make_hostile_images as make
from tests.beam_jobs.make_hostile_images import GREY, HEIGHT, PIXELS, WIDTH
from tests.make_images import encode, flipped, forged_png, jpeg, png, rotated_jpeg

ACCEPTED, NORMALISED, REJECTED = "accepted", "normalised", "rejected"


@dataclass(frozen=True)
class Row:
    """One kind of file.

    Attributes:
      name: what the table of the documentation calls it.
      make: makes one.
      outcome: accepted, normalised or rejected.
      reason: as in `ImageFacts.normalised` or as of the reject.
      shows: the pixels to expect, uint8, height x width (x 3); None where nobody can say.
    """

    name: str
    make: Callable[[], bytes]
    outcome: str
    reason: str = ""
    shows: np.ndarray | None = None


def accepted(name: str, make: Callable[[], bytes], shows: np.ndarray | None = None) -> Row:
    return Row(name, make, ACCEPTED, "", shows)


def normalised(name: str, make: Callable[[], bytes], reason: str, shows: np.ndarray | None = None) -> Row:
    return Row(name, make, NORMALISED, reason, shows)


def rejected(name: str, make: Callable[[], bytes], reason: str) -> Row:
    return Row(name, make, REJECTED, reason)


JPEG, PNG = jpeg(), png()
COLOURS = PIXELS.astype(np.uint16) * 257
ALPHA = np.full((HEIGHT, WIDTH), 255, np.uint8)
ALPHA[:30] = 0
HALF = np.dstack([PIXELS, ALPHA])
OPAQUE = np.dstack([PIXELS, np.full_like(ALPHA, 255)])
ON_WHITE, GREY_ON_WHITE = (np.where(mask < 255, 255, kept) for mask, kept in ((HALF[..., 3:], PIXELS), (ALPHA, GREY)))
INDICES, PLTE = make.palette()
TABLE = np.frombuffer(PLTE[8:-4], np.uint8).reshape(-1, 3)
PALETTE = TABLE[INDICES]
TWO_BITS = GREY >> 6
CORNER = np.where(GREY[0, 0] == GREY, 255, GREY)
COLOUR_CORNER = np.where((PIXELS[0, 0] == PIXELS).all(axis=2, keepdims=True), 255, PIXELS)
BLUE = np.full((16, 16, 3), (0x20, 0x40, 0x60), np.uint8)


def as_tiff(pixels: np.ndarray | Image.Image, **options) -> bytes:
    return encode(pixels, "TIFF", **options)


def inks() -> Image.Image:
    return Image.fromarray(PIXELS).convert("CMYK")


def lab() -> Image.Image:
    profiles = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    return ImageCms.profileToProfile(Image.fromarray(PIXELS), *profiles, outputMode="LAB")


def packed(samples: np.ndarray, bits: int) -> bytes:
    return np.packbits((samples[..., None] >> np.arange(bits - 1, -1, -1) & 1).astype(np.uint8)).tobytes()


def tiles() -> bytes:
    cells = np.pad(GREY, ((0, 4), (0, 16))).reshape(2, 32, 3, 32).swapaxes(1, 2).tobytes()
    places = {324: (4, tuple(8 + 1024 * n for n in range(6))), 325: (4, (1024,) * 6)}
    return make.tiff(cells, HEIGHT, WIDTH, {322: (4, (32,)), 323: (4, (32,)), **places})


def short(value: int) -> tuple[int, tuple[int, ...]]:
    return 3, (value,)


OTHERS = [
    rejected("zero bytes", lambda: b"", "empty_file"),
    rejected("text", lambda: b"hello world", "not_an_image"),
    rejected("HTML page, the error response of a web server", lambda: b"<!DOCTYPE html>404", "not_an_image"),
    rejected("ICO", lambda: encode(PIXELS, "ICO"), "not_an_image"),
    rejected("PSD", lambda: b"8BPS\x00\x01" + bytes(100), "not_an_image"),
    rejected("SVG", lambda: b'<svg xmlns="http://www.w3.org/2000/svg"/>', "not_an_image"),
    rejected("PDF", lambda: b"%PDF-1.7\n" + bytes(100), "not_an_image"),
    rejected("EPS", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n" + bytes(100), "not_an_image"),
    rejected("HEIC", lambda: b"\x00\x00\x00\x18ftypheic" + bytes(100), "not_an_image"),
    rejected("AVIF", lambda: b"\x00\x00\x00\x18ftypavif" + bytes(100), "not_an_image"),
    rejected("JPEG 2000", lambda: encode(PIXELS, "JPEG2000"), "not_an_image"),
    rejected("WAV, a RIFF file that is not WebP", lambda: b"RIFF\x24\x00\x00\x00WAVEfmt ", "not_an_image"),
    accepted("PNG whose name ends in .jpg", png, PIXELS),
]
JPEGS = [
    accepted("JPEG", jpeg, PIXELS),
    accepted("progressive", lambda: jpeg(progressive=True), PIXELS),
    accepted("optimised, with restart markers", lambda: jpeg(optimize=True, restart_marker_blocks=3), PIXELS),
    accepted("grey", lambda: encode(GREY, "JPEG", quality=90), GREY),
    accepted("without chroma subsampling", lambda: jpeg(subsampling=0), PIXELS),
    accepted("stored as RGB", lambda: jpeg(keep_rgb=True), PIXELS),
    accepted("without Huffman tables, like a frame of MJPEG video", lambda: make.without_segments(JPEG, 0xC4), PIXELS),
    normalised(
        "CMYK, inverted, with Adobe's marker", lambda: encode(inks(), "JPEG", quality=90), "colour_space", PIXELS
    ),
    normalised("YCCK, inverted, with Adobe's marker", make.ycck, "colour_space", PIXELS),
    normalised("CMYK without Adobe's marker", make.cmyk_without_adobe, "colour_space", PIXELS),
    accepted("Adobe RGB or another ICC profile", lambda: jpeg(icc_profile=make.icc_profile()), PIXELS),
    accepted("EXIF orientation 1", lambda: rotated_jpeg(1), PIXELS),
    *(
        normalised(
            f"EXIF orientation {turned}",
            lambda turned=turned: rotated_jpeg(turned),
            "exif_orientation",
            make.oriented(PIXELS, turned),
        )
        for turned in range(2, 9)
    ),
    accepted("EXIF orientation 9", lambda: rotated_jpeg(9), PIXELS),
    accepted("broken EXIF block", lambda: make.exif_jpeg(b"broken"), PIXELS),
    accepted("EXIF tags that claim 300 MB", lambda: make.exif_jpeg(make.exif_bomb()), PIXELS),
    accepted("thumbnail in EXIF", lambda: make.exif_jpeg(make.exif(b"", 0, encode(PIXELS[:16, :16], "JPEG"))), PIXELS),
    accepted("comment of 60 kB", lambda: make.after_soi(JPEG, make.segment(0xFE, bytes(60_000))), PIXELS),
    accepted("MPO: several pictures", lambda: make.animated("MPO", quality=90), PIXELS),
    accepted("MPO with a broken index", make.malformed_mpo, PIXELS),
    accepted("trailing garbage", lambda: JPEG + b"garbage" * 1500, PIXELS),
    accepted(
        "a video after the image data", lambda: jpeg(progressive=True) + b"\x00\x02" + b"\xff\xda\x00\x02" * 200, PIXELS
    ),
    accepted("5 MB of fill bytes before the frame header", lambda: make.after_soi(JPEG, b"\xff" * 5_000_000), PIXELS),
    rejected("a byte before the start", lambda: b"\x00" + JPEG, "not_an_image"),
    rejected("start marker only", lambda: JPEG[:2], "not_an_image"),
    rejected("start marker twice", lambda: JPEG[:2] + JPEG, "undecodable"),
    rejected("truncated in its tables", lambda: JPEG[:200], "bad_header"),
    rejected("truncated to half", lambda: JPEG[: len(JPEG) // 2], "undecodable"),
    rejected("without its last 200 bytes", lambda: JPEG[:-200], "undecodable"),
    rejected("without its end marker", lambda: JPEG[:-2], "undecodable"),
    rejected("without quantisation tables", lambda: make.without_segments(JPEG, 0xDB), "undecodable"),
    rejected("without frame header", lambda: make.without_segments(JPEG, 0xC0), "bad_header"),
    rejected("12 bits per sample", lambda: make.with_frame(JPEG, 0xC1, precision=12), "bad_header"),
    accepted("marked as arithmetic coding", lambda: make.with_frame(JPEG, 0xC9)),
    rejected("lossless (SOF3)", lambda: make.with_frame(JPEG, 0xC3), "undecodable"),
    rejected("hierarchical (SOF5)", lambda: make.with_frame(JPEG, 0xC5), "undecodable"),
    rejected("two components", lambda: make.with_components(2), "bad_header"),
    rejected("five components", lambda: make.with_components(5), "bad_header"),
    rejected("width 0", lambda: make.with_frame(JPEG, width=0), "bad_header"),
    rejected(
        "height 0, given by a DNL segment",
        lambda: make.with_frame(JPEG[:-2], height=0) + make.segment(0xDC, b"\x00\x3c") + JPEG[-2:],
        "bad_header",
    ),
    rejected("claims 49 Mpx", lambda: make.with_frame(JPEG, height=7000, width=7000), "forged_size"),
    rejected("claims 65500 x 65500", lambda: make.with_frame(JPEG, height=65_500, width=65_500), "too_large"),
    accepted("claims the largest possible size for its bytes", lambda: make.with_frame(JPEG, height=300, width=300)),
    rejected("1,000 scans", lambda: make.many_scans(1000, 512), "too_large"),
    rejected("a million segments", lambda: make.after_soi(JPEG, make.segment(0xE0, b"") * 1_000_000), "bad_header"),
]
PNGS = [
    accepted("PNG", png, PIXELS),
    accepted("interlaced (Adam7)", lambda: make.raw_png(PIXELS, 8, 2, interlaced=True), PIXELS),
    accepted("grey of 1 bit", lambda: make.raw_png(GREY >> 7, 1, 0), (GREY >> 7) * 255),
    accepted("grey of 2 bits", lambda: make.raw_png(TWO_BITS, 2, 0), TWO_BITS * 85),
    accepted("grey of 4 bits, interlaced", lambda: make.raw_png(GREY >> 4, 4, 0, interlaced=True), (GREY >> 4) * 17),
    normalised("grey of 16 bits", lambda: make.raw_png(make.SIXTEEN, 16, 0), "sixteen_bit", GREY),
    normalised("RGB of 16 bits", lambda: make.raw_png(COLOURS, 16, 2), "sixteen_bit", PIXELS),
    accepted("palette of 8 bits", lambda: make.raw_png(INDICES, 8, 3, PLTE), PALETTE),
    accepted("palette of 2 bits", lambda: make.raw_png(INDICES, 2, 3, PLTE), PALETTE),
    accepted("palette with an index out of range", lambda: make.raw_png(INDICES * 60, 8, 3, PLTE)),
    rejected("palette missing", lambda: make.raw_png(INDICES, 2, 3), "undecodable"),
    accepted("alpha, all opaque", lambda: make.raw_png(OPAQUE, 8, 6), PIXELS),
    normalised("alpha", lambda: make.raw_png(HALF, 8, 6), "alpha", ON_WHITE),
    normalised(
        "alpha of 16 bits", lambda: make.raw_png(HALF.astype(np.uint16) * 257, 16, 6), "sixteen_bit+alpha", ON_WHITE
    ),
    normalised("grey and alpha", lambda: make.raw_png(np.dstack([GREY, ALPHA]), 8, 4), "alpha", GREY_ON_WHITE),
    normalised(
        "palette with transparency (tRNS)",
        lambda: make.raw_png(INDICES, 2, 3, PLTE + make.chunk(b"tRNS", b"\x00")),
        "alpha",
        np.where(INDICES[..., None] == 0, 255, PALETTE),
    ),
    normalised(
        "grey of 2 bits with tRNS",
        lambda: make.raw_png(TWO_BITS, 2, 0, make.chunk(b"tRNS", b"\x00\x01")),
        "alpha",
        np.where(TWO_BITS == 1, 255, TWO_BITS * 85),
    ),
    normalised(
        "grey of 8 bits with tRNS",
        lambda: make.raw_png(GREY, 8, 0, make.chunk(b"tRNS", struct.pack(">H", int(GREY[0, 0])))),
        "alpha",
        CORNER,
    ),
    normalised(
        "grey of 16 bits with tRNS",
        lambda: make.raw_png(make.SIXTEEN, 16, 0, make.chunk(b"tRNS", struct.pack(">H", int(make.SIXTEEN[0, 0])))),
        "sixteen_bit+alpha",
        CORNER,
    ),
    normalised(
        "RGB with tRNS",
        lambda: make.raw_png(PIXELS, 8, 2, make.chunk(b"tRNS", struct.pack(">3H", *map(int, PIXELS[0, 0])))),
        "alpha",
        COLOUR_CORNER,
    ),
    normalised(
        "RGB of 16 bits with tRNS",
        lambda: make.raw_png(COLOURS, 16, 2, make.chunk(b"tRNS", struct.pack(">3H", *map(int, COLOURS[0, 0])))),
        "sixteen_bit+alpha",
        COLOUR_CORNER,
    ),
    accepted("ICC profile", lambda: encode(PIXELS, "PNG", icc_profile=make.icc_profile()), PIXELS),
    normalised(
        "EXIF orientation 6",
        lambda: make.before_pixels(PNG, make.chunk(b"eXIf", make.orientation_tag(6))),
        "exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    normalised(
        "EXIF orientation 6, after the pixels",
        lambda: make.before_end(PNG, make.chunk(b"eXIf", make.orientation_tag(6))),
        "exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    normalised("APNG of 3 frames", lambda: make.animated("PNG"), "animated", PIXELS),
    normalised(
        "APNG that claims 2^31 frames", lambda: make.before_pixels(PNG, make.frames_chunk(2**31)), "animated", PIXELS
    ),
    accepted("APNG that claims no frame", lambda: make.before_pixels(PNG, make.frames_chunk(0)), PIXELS),
    accepted("text that inflates to 100 kB", lambda: make.before_pixels(PNG, make.ztxt(100_000)), PIXELS),
    rejected("text that inflates to 10 MB", lambda: make.before_pixels(PNG, make.ztxt(10_000_000)), "bad_header"),
    rejected(
        "200 texts of 8 MB after the pixels", lambda: make.before_end(PNG, make.ztxt(7_900_000) * 200), "bad_header"
    ),
    rejected("profile that inflates to 10 MB", lambda: make.before_pixels(PNG, make.iccp(10_000_000)), "bad_header"),
    accepted(
        "damaged text chunk", lambda: make.before_pixels(PNG, flipped(make.chunk(b"tEXt", b"a\x00b"), 12)), PIXELS
    ),
    rejected(
        "chunk that claims 1 GB", lambda: make.before_pixels(PNG, struct.pack(">I", 1 << 30) + b"tEXt"), "bad_header"
    ),
    rejected("a million chunks", lambda: make.before_pixels(PNG, make.chunk(b"teXt", b"") * 1_000_000), "bad_header"),
    accepted("trailing garbage", lambda: PNG + b"garbage" * 1500, PIXELS),
    accepted("12 Mpx in 5 kB", lambda: make.bilevel_png(3464)),
    rejected("truncated in its header", lambda: PNG[:20], "bad_header"),
    rejected("header not first", lambda: make.PNG_START + make.chunk(b"tEXt", b"a\x00b") + PNG[8:], "bad_header"),
    rejected("header twice", lambda: make.before_pixels(PNG, PNG[8:33]), "undecodable"),
    rejected("3 bits per sample", lambda: make.raw_png(PIXELS, 3, 2), "bad_header"),
    rejected("truncated to half", lambda: PNG[: len(PNG) // 2], "undecodable"),
    rejected("without pixels", lambda: PNG[:33] + PNG[-12:], "undecodable"),
    rejected("without its end chunk", lambda: PNG[:-12], "undecodable"),
    rejected("a flipped byte", lambda: flipped(PNG, len(PNG) // 2), "undecodable"),
    rejected("claims 0 x 0", lambda: forged_png(0), "bad_header"),
    rejected("claims 300 x 300", lambda: forged_png(300), "undecodable"),
    rejected("claims 49 Mpx", lambda: forged_png(7000), "forged_size"),
    rejected("claims 900 Mpx", lambda: forged_png(30_000), "too_large"),
]
GIFS = [
    normalised("GIF", lambda: encode(PIXELS, "GIF"), "format", PIXELS),
    normalised(
        "interlaced", lambda: encode(Image.fromarray(PIXELS).quantize(64), "GIF", interlace=1), "format", PIXELS
    ),
    normalised(
        "transparency",
        lambda: encode(Image.fromarray(PIXELS).quantize(4), "GIF", transparency=0),
        "format+alpha",
        np.where(INDICES[..., None] == 0, 255, PALETTE),
    ),
    normalised("animated", lambda: make.animated("GIF"), "format+animated", PIXELS),
    normalised("10,000 frames", lambda: make.gif(frames=10_000), "format+animated", BLUE),
    normalised("canvas far larger than its frame", lambda: make.gif((4000, 3000)), "format"),
    normalised(
        "frame larger than the canvas", lambda: make.gif((16, 16), (64, 48)), "format", np.tile(BLUE, (3, 4, 1))
    ),
    rejected("canvas of 65535 x 65535", lambda: make.gif((65_535, 65_535)), "too_large"),
    rejected("no frame", lambda: make.gif(frames=0), "bad_header"),
    rejected("truncated to half", lambda: encode(PIXELS, "GIF")[:1500], "undecodable"),
    normalised("trailing garbage", lambda: make.gif() + b"garbage" * 1500, "format", BLUE),
    rejected(
        "comment of 3 million blocks", lambda: make.gif(before=b"!\xfe" + b"\x01a" * 3_000_000 + b"\x00"), "bad_header"
    ),
    rejected("a million comments", lambda: make.gif(before=b"!\xfe\x01a\x00" * 1_000_000), "bad_header"),
]
BMPS = [
    normalised("BMP", lambda: encode(PIXELS, "BMP"), "format", PIXELS),
    normalised("negative height: upper row first", make.top_down_bmp, "format", PIXELS),
    normalised(
        "run-length (RLE8)", make.rle_bmp, "format", np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[::-1, None], 80, 1)
    ),
    rejected("run-length (RLE8), truncated to half", lambda: make.rle_bmp()[:1200], "undecodable"),
    rejected("truncated to half", lambda: encode(PIXELS, "BMP")[:5000], "undecodable"),
    rejected("claims 49 Mpx", lambda: make.bmp(7000, 7000), "undecodable"),
    rejected("claims 2^31 x 2^31", lambda: make.bmp(2**31 - 1, 2**31 - 1), "too_large"),
    rejected("negative width", lambda: make.bmp(width=-WIDTH), "too_large"),
    rejected("text that starts with BM", lambda: b"BM, said the consultant, and left it there", "bad_header"),
]
TIFFS = [
    normalised("TIFF", lambda: as_tiff(PIXELS), "format", PIXELS),
    normalised("LZW", lambda: as_tiff(PIXELS, compression="tiff_lzw"), "format", PIXELS),
    normalised("JPEG inside", lambda: as_tiff(PIXELS, compression="jpeg", quality=90), "format", PIXELS),
    normalised(
        "1 bit, fax",
        lambda: as_tiff(Image.fromarray(GREY > 99), compression="group4"),
        "format",
        (GREY > 99) * np.uint8(255),
    ),
    normalised("several pages", lambda: make.animated("TIFF"), "format+animated", PIXELS),
    normalised("20,000 pages", lambda: make.many_pages(20_000), "format+animated", GREY),
    normalised("tiles", tiles, "format", GREY),
    normalised("alpha", lambda: as_tiff(HALF), "format+alpha", ON_WHITE),
    normalised(
        "grey and alpha",
        lambda: as_tiff(Image.fromarray(np.dstack([GREY, ALPHA]), "LA")),
        "format+alpha",
        GREY_ON_WHITE,
    ),
    normalised("CMYK", lambda: as_tiff(inks()), "format+colour_space", PIXELS),
    normalised("LAB", lambda: as_tiff(lab()), "format+colour_space", PIXELS),
    normalised("grey of 16 bits", lambda: as_tiff(Image.fromarray(make.SIXTEEN)), "format+sixteen_bit", GREY),
    normalised(
        "grey of 16 bits, white is zero",
        lambda: make.tiff((65_535 - make.SIXTEEN).tobytes(), HEIGHT, WIDTH, {258: short(16), 262: short(0)}),
        "format+sixteen_bit",
        GREY,
    ),
    normalised(
        "grey, white is zero", lambda: make.tiff((255 - GREY).tobytes(), HEIGHT, WIDTH, {262: short(0)}), "format", GREY
    ),
    normalised(
        "grey of 12 bits",
        lambda: make.tiff(packed(make.SIXTEEN >> 4, 12), HEIGHT, WIDTH, {258: short(12)}),
        "format+sixteen_bit",
        GREY,
    ),
    normalised(
        "RGB of 16 bits",
        lambda: make.tiff(COLOURS.tobytes(), HEIGHT, WIDTH, {258: (3, (16,) * 3), 262: short(2), 277: short(3)}),
        "format+sixteen_bit",
        PIXELS,
    ),
    normalised(
        "EXIF orientation 6",
        lambda: make.with_orientation("TIFF", 6),
        "format+exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    rejected("floats", lambda: as_tiff(Image.fromarray(GREY.astype(np.float32))), "unknown_range"),
    rejected("grey of 32 bits", lambda: as_tiff(Image.fromarray(GREY.astype(np.int32))), "unknown_range"),
    rejected("signed bytes", lambda: make.tiff(GREY.tobytes(), HEIGHT, WIDTH, {339: short(2)}), "unknown_range"),
    rejected("BigTIFF", lambda: b"II+\x00" + bytes(100), "not_an_image"),
    rejected("truncated to half", lambda: as_tiff(PIXELS)[:5000], "undecodable"),
    rejected("claims 49 Mpx of LZW", lambda: make.tiff(bytes(100), 7000, 7000, {259: short(5)}), "undecodable"),
    rejected("claims 900 Mpx", lambda: make.tiff(bytes(100), 30_000, 30_000, {259: short(5)}), "too_large"),
    rejected(
        "tiles of 32768 x 32768",
        lambda: make.tiff(
            zlib.compress(bytes(9999)),
            HEIGHT,
            WIDTH,
            {259: short(8), 322: (4, (1 << 15,)), 323: (4, (1 << 15,)), 324: (4, (8,)), 325: (4, (9,))},
        ),
        "bad_header",
    ),
    rejected("tags that claim 500 times the file", make.tiff_tag_bomb, "bad_header"),
    rejected("a million fractions", lambda: make.tiff_fractions(1_000_000), "bad_header"),
]
WEBPS = [
    normalised("WebP", lambda: encode(PIXELS, "WEBP"), "format", PIXELS),
    normalised("lossless", lambda: encode(PIXELS, "WEBP", lossless=True), "format", PIXELS),
    normalised("alpha", lambda: encode(HALF, "WEBP"), "format+alpha", ON_WHITE),
    normalised("animated", lambda: make.animated("WEBP"), "format+animated", PIXELS),
    normalised(
        "EXIF orientation 6",
        lambda: make.with_orientation("WEBP", 6),
        "format+exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    rejected("animated, claims 49 Mpx", lambda: make.webp_claiming(7000, 7000), "too_large"),
    rejected("animated, claims 16384 x 16384", lambda: make.webp_claiming(16_384, 16_384), "too_large"),
    rejected("truncated to half", lambda: encode(PIXELS, "WEBP")[:500], "bad_header"),
]

SECTIONS = {"Other files": OTHERS, "JPEG": JPEGS, "PNG": PNGS, "GIF": GIFS, "BMP": BMPS, "TIFF": TIFFS, "WebP": WEBPS}
