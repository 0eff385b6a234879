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
    Row("zero bytes", lambda: b"", REJECTED, "empty_file"),
    Row("text", lambda: b"hello world", REJECTED, "not_an_image"),
    Row("HTML, the answer of a server that had no image", lambda: b"<!DOCTYPE html>404", REJECTED, "not_an_image"),
    Row("ICO", lambda: encode(PIXELS, "ICO"), REJECTED, "not_an_image"),
    Row("PSD", lambda: b"8BPS\x00\x01" + bytes(100), REJECTED, "not_an_image"),
    Row("SVG", lambda: b'<svg xmlns="http://www.w3.org/2000/svg"/>', REJECTED, "not_an_image"),
    Row("PDF", lambda: b"%PDF-1.7\n" + bytes(100), REJECTED, "not_an_image"),
    Row("EPS", lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n" + bytes(100), REJECTED, "not_an_image"),
    Row("HEIC", lambda: b"\x00\x00\x00\x18ftypheic" + bytes(100), REJECTED, "not_an_image"),
    Row("AVIF", lambda: b"\x00\x00\x00\x18ftypavif" + bytes(100), REJECTED, "not_an_image"),
    Row("JPEG 2000", lambda: encode(PIXELS, "JPEG2000"), REJECTED, "not_an_image"),
    Row("WAV: RIFF, but no WebP", lambda: b"RIFF\x24\x00\x00\x00WAVEfmt ", REJECTED, "not_an_image"),
    Row("PNG whose name ends in .jpg", png, ACCEPTED, "", PIXELS),
]
JPEGS = [
    Row("JPEG", jpeg, ACCEPTED, "", PIXELS),
    Row("progressive", lambda: jpeg(progressive=True), ACCEPTED, "", PIXELS),
    Row("optimised, with restart markers", lambda: jpeg(optimize=True, restart_marker_blocks=3), ACCEPTED, "", PIXELS),
    Row("grey", lambda: encode(GREY, "JPEG", quality=90), ACCEPTED, "", GREY),
    Row("without chroma subsampling", lambda: jpeg(subsampling=0), ACCEPTED, "", PIXELS),
    Row("stored as RGB", lambda: jpeg(keep_rgb=True), ACCEPTED, "", PIXELS),
    Row(
        "without Huffman tables, as from a camera's film",
        lambda: make.without_segments(JPEG, 0xC4),
        ACCEPTED,
        "",
        PIXELS,
    ),
    Row(
        "CMYK, inverted, with Adobe's marker",
        lambda: encode(inks(), "JPEG", quality=90),
        NORMALISED,
        "colour_space",
        PIXELS,
    ),
    Row("YCCK, inverted, with Adobe's marker", make.ycck, NORMALISED, "colour_space", PIXELS),
    Row("CMYK without Adobe's marker", make.cmyk_without_adobe, NORMALISED, "colour_space", PIXELS),
    Row("Adobe RGB or another ICC profile", lambda: jpeg(icc_profile=make.icc_profile()), ACCEPTED, "", PIXELS),
    Row("EXIF orientation 1", lambda: rotated_jpeg(1), ACCEPTED, "", PIXELS),
    *(
        Row(
            f"EXIF orientation {turned}",
            lambda turned=turned: rotated_jpeg(turned),
            NORMALISED,
            "exif_orientation",
            make.oriented(PIXELS, turned),
        )
        for turned in range(2, 9)
    ),
    Row("EXIF orientation 9", lambda: rotated_jpeg(9), ACCEPTED, "", PIXELS),
    Row("broken EXIF block", lambda: make.exif_jpeg(b"broken"), ACCEPTED, "", PIXELS),
    Row("EXIF tags that claim 300 MB", lambda: make.exif_jpeg(make.exif_bomb()), ACCEPTED, "", PIXELS),
    Row(
        "thumbnail in EXIF",
        lambda: make.exif_jpeg(make.exif(b"", 0, encode(PIXELS[:16, :16], "JPEG"))),
        ACCEPTED,
        "",
        PIXELS,
    ),
    Row("comment of 60 kB", lambda: make.after_soi(JPEG, make.segment(0xFE, bytes(60_000))), ACCEPTED, "", PIXELS),
    Row("MPO: several pictures", lambda: make.animated("MPO", quality=90), ACCEPTED, "", PIXELS),
    Row("MPO index broken", make.malformed_mpo, ACCEPTED, "", PIXELS),
    Row("trailing garbage", lambda: JPEG + b"garbage" * 1500, ACCEPTED, "", PIXELS),
    Row(
        "a film behind the picture",
        lambda: jpeg(progressive=True) + b"\x00\x02" + b"\xff\xda\x00\x02" * 200,
        ACCEPTED,
        "",
        PIXELS,
    ),
    Row(
        "5 MB of filler before the frame header",
        lambda: make.after_soi(JPEG, b"\xff" * 5_000_000),
        ACCEPTED,
        "",
        PIXELS,
    ),
    Row("a byte before the start", lambda: b"\x00" + JPEG, REJECTED, "not_an_image"),
    Row("start marker only", lambda: JPEG[:2], REJECTED, "not_an_image"),
    Row("start marker twice", lambda: JPEG[:2] + JPEG, REJECTED, "undecodable"),
    Row("cut in its tables", lambda: JPEG[:200], REJECTED, "bad_header"),
    Row("cut in half", lambda: JPEG[: len(JPEG) // 2], REJECTED, "undecodable"),
    Row("without its last 200 bytes", lambda: JPEG[:-200], REJECTED, "undecodable"),
    Row("without its end marker", lambda: JPEG[:-2], REJECTED, "undecodable"),
    Row("without quantisation tables", lambda: make.without_segments(JPEG, 0xDB), REJECTED, "undecodable"),
    Row("without frame header", lambda: make.without_segments(JPEG, 0xC0), REJECTED, "bad_header"),
    Row("12 bits per sample", lambda: make.with_frame(JPEG, 0xC1, precision=12), REJECTED, "bad_header"),
    Row("arithmetic coding claimed", lambda: make.with_frame(JPEG, 0xC9), ACCEPTED, ""),
    Row("lossless (SOF3)", lambda: make.with_frame(JPEG, 0xC3), REJECTED, "undecodable"),
    Row("hierarchical (SOF5)", lambda: make.with_frame(JPEG, 0xC5), REJECTED, "undecodable"),
    Row("two components", lambda: make.with_components(2), REJECTED, "bad_header"),
    Row("five components", lambda: make.with_components(5), REJECTED, "bad_header"),
    Row("width 0", lambda: make.with_frame(JPEG, width=0), REJECTED, "bad_header"),
    Row(
        "height 0, given by a DNL segment",
        lambda: make.with_frame(JPEG[:-2], height=0) + make.segment(0xDC, b"\x00\x3c") + JPEG[-2:],
        REJECTED,
        "bad_header",
    ),
    Row("claims 49 Mpx", lambda: make.with_frame(JPEG, height=7000, width=7000), REJECTED, "forged_size"),
    Row("claims 65500 x 65500", lambda: make.with_frame(JPEG, height=65_500, width=65_500), REJECTED, "too_large"),
    Row("claims what its bytes could just hold", lambda: make.with_frame(JPEG, height=300, width=300), ACCEPTED, ""),
    Row("1,000 scans", lambda: make.many_scans(1000, 512), REJECTED, "too_large"),
    Row(
        "a million segments", lambda: make.after_soi(JPEG, make.segment(0xE0, b"") * 1_000_000), REJECTED, "bad_header"
    ),
]
PNGS = [
    Row("PNG", png, ACCEPTED, "", PIXELS),
    Row("interlaced (Adam7)", lambda: make.raw_png(PIXELS, 8, 2, interlaced=True), ACCEPTED, "", PIXELS),
    Row("grey of 1 bit", lambda: make.raw_png(GREY >> 7, 1, 0), ACCEPTED, "", (GREY >> 7) * 255),
    Row("grey of 2 bits", lambda: make.raw_png(TWO_BITS, 2, 0), ACCEPTED, "", TWO_BITS * 85),
    Row(
        "grey of 4 bits, interlaced",
        lambda: make.raw_png(GREY >> 4, 4, 0, interlaced=True),
        ACCEPTED,
        "",
        (GREY >> 4) * 17,
    ),
    Row("grey of 16 bits", lambda: make.raw_png(make.SIXTEEN, 16, 0), NORMALISED, "sixteen_bit", GREY),
    Row("RGB of 16 bits", lambda: make.raw_png(COLOURS, 16, 2), NORMALISED, "sixteen_bit", PIXELS),
    Row("palette of 8 bits", lambda: make.raw_png(INDICES, 8, 3, PLTE), ACCEPTED, "", PALETTE),
    Row("palette of 2 bits", lambda: make.raw_png(INDICES, 2, 3, PLTE), ACCEPTED, "", PALETTE),
    Row("palette with an index out of range", lambda: make.raw_png(INDICES * 60, 8, 3, PLTE), ACCEPTED, ""),
    Row("palette missing", lambda: make.raw_png(INDICES, 2, 3), REJECTED, "undecodable"),
    Row("alpha, all opaque", lambda: make.raw_png(OPAQUE, 8, 6), ACCEPTED, "", PIXELS),
    Row("alpha", lambda: make.raw_png(HALF, 8, 6), NORMALISED, "alpha", ON_WHITE),
    Row(
        "alpha of 16 bits",
        lambda: make.raw_png(HALF.astype(np.uint16) * 257, 16, 6),
        NORMALISED,
        "sixteen_bit+alpha",
        ON_WHITE,
    ),
    Row("grey and alpha", lambda: make.raw_png(np.dstack([GREY, ALPHA]), 8, 4), NORMALISED, "alpha", GREY_ON_WHITE),
    Row(
        "palette with transparency (tRNS)",
        lambda: make.raw_png(INDICES, 2, 3, PLTE + make.chunk(b"tRNS", b"\x00")),
        NORMALISED,
        "alpha",
        np.where(INDICES[..., None] == 0, 255, PALETTE),
    ),
    Row(
        "grey of 2 bits with tRNS",
        lambda: make.raw_png(TWO_BITS, 2, 0, make.chunk(b"tRNS", b"\x00\x01")),
        NORMALISED,
        "alpha",
        np.where(TWO_BITS == 1, 255, TWO_BITS * 85),
    ),
    Row(
        "grey of 8 bits with tRNS",
        lambda: make.raw_png(GREY, 8, 0, make.chunk(b"tRNS", struct.pack(">H", int(GREY[0, 0])))),
        NORMALISED,
        "alpha",
        CORNER,
    ),
    Row(
        "grey of 16 bits with tRNS",
        lambda: make.raw_png(make.SIXTEEN, 16, 0, make.chunk(b"tRNS", struct.pack(">H", int(make.SIXTEEN[0, 0])))),
        NORMALISED,
        "sixteen_bit+alpha",
        CORNER,
    ),
    Row(
        "RGB with tRNS",
        lambda: make.raw_png(PIXELS, 8, 2, make.chunk(b"tRNS", struct.pack(">3H", *map(int, PIXELS[0, 0])))),
        NORMALISED,
        "alpha",
        COLOUR_CORNER,
    ),
    Row(
        "RGB of 16 bits with tRNS",
        lambda: make.raw_png(COLOURS, 16, 2, make.chunk(b"tRNS", struct.pack(">3H", *map(int, COLOURS[0, 0])))),
        NORMALISED,
        "sixteen_bit+alpha",
        COLOUR_CORNER,
    ),
    Row("ICC profile", lambda: encode(PIXELS, "PNG", icc_profile=make.icc_profile()), ACCEPTED, "", PIXELS),
    Row(
        "EXIF orientation 6",
        lambda: make.before_pixels(PNG, make.chunk(b"eXIf", make.orientation_tag(6))),
        NORMALISED,
        "exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    Row(
        "EXIF orientation 6, behind the pixels",
        lambda: make.before_end(PNG, make.chunk(b"eXIf", make.orientation_tag(6))),
        NORMALISED,
        "exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    Row("APNG of 3 frames", lambda: make.animated("PNG"), NORMALISED, "animated", PIXELS),
    Row(
        "APNG that claims 2^31 frames",
        lambda: make.before_pixels(PNG, make.frames_chunk(2**31)),
        NORMALISED,
        "animated",
        PIXELS,
    ),
    Row("APNG that claims no frame", lambda: make.before_pixels(PNG, make.frames_chunk(0)), ACCEPTED, "", PIXELS),
    Row("text that inflates to 100 kB", lambda: make.before_pixels(PNG, make.ztxt(100_000)), ACCEPTED, "", PIXELS),
    Row("text that inflates to 10 MB", lambda: make.before_pixels(PNG, make.ztxt(10_000_000)), REJECTED, "bad_header"),
    Row(
        "200 texts of 8 MB behind the pixels",
        lambda: make.before_end(PNG, make.ztxt(7_900_000) * 200),
        REJECTED,
        "bad_header",
    ),
    Row(
        "profile that inflates to 10 MB", lambda: make.before_pixels(PNG, make.iccp(10_000_000)), REJECTED, "bad_header"
    ),
    Row(
        "damaged text chunk",
        lambda: make.before_pixels(PNG, flipped(make.chunk(b"tEXt", b"a\x00b"), 12)),
        ACCEPTED,
        "",
        PIXELS,
    ),
    Row(
        "chunk that claims 1 GB",
        lambda: make.before_pixels(PNG, struct.pack(">I", 1 << 30) + b"tEXt"),
        REJECTED,
        "bad_header",
    ),
    Row(
        "a million chunks",
        lambda: make.before_pixels(PNG, make.chunk(b"teXt", b"") * 1_000_000),
        REJECTED,
        "bad_header",
    ),
    Row("trailing garbage", lambda: PNG + b"garbage" * 1500, ACCEPTED, "", PIXELS),
    Row("12 Mpx in 5 kB", lambda: make.bilevel_png(3464), ACCEPTED, ""),
    Row("cut in its header", lambda: PNG[:20], REJECTED, "bad_header"),
    Row("header not first", lambda: make.PNG_START + make.chunk(b"tEXt", b"a\x00b") + PNG[8:], REJECTED, "bad_header"),
    Row("header twice", lambda: make.before_pixels(PNG, PNG[8:33]), REJECTED, "undecodable"),
    Row("3 bits per sample", lambda: make.raw_png(PIXELS, 3, 2), REJECTED, "bad_header"),
    Row("cut in half", lambda: PNG[: len(PNG) // 2], REJECTED, "undecodable"),
    Row("without pixels", lambda: PNG[:33] + PNG[-12:], REJECTED, "undecodable"),
    Row("without its end chunk", lambda: PNG[:-12], REJECTED, "undecodable"),
    Row("a flipped byte", lambda: flipped(PNG, len(PNG) // 2), REJECTED, "undecodable"),
    Row("claims 0 x 0", lambda: forged_png(0), REJECTED, "bad_header"),
    Row("claims 300 x 300", lambda: forged_png(300), REJECTED, "undecodable"),
    Row("claims 49 Mpx", lambda: forged_png(7000), REJECTED, "forged_size"),
    Row("claims 900 Mpx", lambda: forged_png(30_000), REJECTED, "too_large"),
]
GIFS = [
    Row("GIF", lambda: encode(PIXELS, "GIF"), NORMALISED, "format", PIXELS),
    Row(
        "interlaced",
        lambda: encode(Image.fromarray(PIXELS).quantize(64), "GIF", interlace=1),
        NORMALISED,
        "format",
        PIXELS,
    ),
    Row(
        "transparency",
        lambda: encode(Image.fromarray(PIXELS).quantize(4), "GIF", transparency=0),
        NORMALISED,
        "format+alpha",
        np.where(INDICES[..., None] == 0, 255, PALETTE),
    ),
    Row("animated", lambda: make.animated("GIF"), NORMALISED, "format+animated", PIXELS),
    Row("10,000 frames", lambda: make.gif(frames=10_000), NORMALISED, "format+animated", BLUE),
    Row("screen far larger than its frame", lambda: make.gif((4000, 3000)), NORMALISED, "format"),
    Row(
        "frame larger than the screen",
        lambda: make.gif((16, 16), (64, 48)),
        NORMALISED,
        "format",
        np.tile(BLUE, (3, 4, 1)),
    ),
    Row("screen of 65535 x 65535", lambda: make.gif((65_535, 65_535)), REJECTED, "too_large"),
    Row("no frame", lambda: make.gif(frames=0), REJECTED, "bad_header"),
    Row("cut in half", lambda: encode(PIXELS, "GIF")[:1500], REJECTED, "undecodable"),
    Row("trailing garbage", lambda: make.gif() + b"garbage" * 1500, NORMALISED, "format", BLUE),
    Row(
        "comment of 3 million blocks",
        lambda: make.gif(before=b"!\xfe" + b"\x01a" * 3_000_000 + b"\x00"),
        REJECTED,
        "bad_header",
    ),
    Row("a million comments", lambda: make.gif(before=b"!\xfe\x01a\x00" * 1_000_000), REJECTED, "bad_header"),
]
BMPS = [
    Row("BMP", lambda: encode(PIXELS, "BMP"), NORMALISED, "format", PIXELS),
    Row("negative height: upper row first", make.top_down_bmp, NORMALISED, "format", PIXELS),
    Row(
        "runs (RLE8)",
        make.rle_bmp,
        NORMALISED,
        "format",
        np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[::-1, None], 80, 1),
    ),
    Row("runs, cut in half", lambda: make.rle_bmp()[:1200], REJECTED, "undecodable"),
    Row("cut in half", lambda: encode(PIXELS, "BMP")[:5000], REJECTED, "undecodable"),
    Row("claims 49 Mpx", lambda: make.bmp(7000, 7000), REJECTED, "undecodable"),
    Row("claims 2^31 x 2^31", lambda: make.bmp(2**31 - 1, 2**31 - 1), REJECTED, "too_large"),
    Row("negative width", lambda: make.bmp(width=-WIDTH), REJECTED, "too_large"),
    Row("text that starts with BM", lambda: b"BM, said the consultant, and left it there", REJECTED, "bad_header"),
]
TIFFS = [
    Row("TIFF", lambda: as_tiff(PIXELS), NORMALISED, "format", PIXELS),
    Row("LZW", lambda: as_tiff(PIXELS, compression="tiff_lzw"), NORMALISED, "format", PIXELS),
    Row("JPEG inside", lambda: as_tiff(PIXELS, compression="jpeg", quality=90), NORMALISED, "format", PIXELS),
    Row(
        "1 bit, fax",
        lambda: as_tiff(Image.fromarray(GREY > 99), compression="group4"),
        NORMALISED,
        "format",
        (GREY > 99) * np.uint8(255),
    ),
    Row("several pages", lambda: make.animated("TIFF"), NORMALISED, "format+animated", PIXELS),
    Row("20,000 pages", lambda: make.many_pages(20_000), NORMALISED, "format+animated", GREY),
    Row("tiles", tiles, NORMALISED, "format", GREY),
    Row("alpha", lambda: as_tiff(HALF), NORMALISED, "format+alpha", ON_WHITE),
    Row(
        "grey and alpha",
        lambda: as_tiff(Image.fromarray(np.dstack([GREY, ALPHA]), "LA")),
        NORMALISED,
        "format+alpha",
        GREY_ON_WHITE,
    ),
    Row("CMYK", lambda: as_tiff(inks()), NORMALISED, "format+colour_space", PIXELS),
    Row("LAB", lambda: as_tiff(lab()), NORMALISED, "format+colour_space", PIXELS),
    Row("grey of 16 bits", lambda: as_tiff(Image.fromarray(make.SIXTEEN)), NORMALISED, "format+sixteen_bit", GREY),
    Row(
        "grey of 16 bits, white is zero",
        lambda: make.tiff((65_535 - make.SIXTEEN).tobytes(), HEIGHT, WIDTH, {258: short(16), 262: short(0)}),
        NORMALISED,
        "format+sixteen_bit",
        GREY,
    ),
    Row(
        "grey, white is zero",
        lambda: make.tiff((255 - GREY).tobytes(), HEIGHT, WIDTH, {262: short(0)}),
        NORMALISED,
        "format",
        GREY,
    ),
    Row(
        "grey of 12 bits",
        lambda: make.tiff(packed(make.SIXTEEN >> 4, 12), HEIGHT, WIDTH, {258: short(12)}),
        NORMALISED,
        "format+sixteen_bit",
        GREY,
    ),
    Row(
        "RGB of 16 bits",
        lambda: make.tiff(COLOURS.tobytes(), HEIGHT, WIDTH, {258: (3, (16,) * 3), 262: short(2), 277: short(3)}),
        NORMALISED,
        "format+sixteen_bit",
        PIXELS,
    ),
    Row(
        "EXIF orientation 6",
        lambda: make.with_orientation("TIFF", 6),
        NORMALISED,
        "format+exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    Row("floats", lambda: as_tiff(Image.fromarray(GREY.astype(np.float32))), REJECTED, "unknown_range"),
    Row("grey of 32 bits", lambda: as_tiff(Image.fromarray(GREY.astype(np.int32))), REJECTED, "unknown_range"),
    Row("signed bytes", lambda: make.tiff(GREY.tobytes(), HEIGHT, WIDTH, {339: short(2)}), REJECTED, "unknown_range"),
    Row("BigTIFF", lambda: b"II+\x00" + bytes(100), REJECTED, "not_an_image"),
    Row("cut in half", lambda: as_tiff(PIXELS)[:5000], REJECTED, "undecodable"),
    Row("claims 49 Mpx of LZW", lambda: make.tiff(bytes(100), 7000, 7000, {259: short(5)}), REJECTED, "undecodable"),
    Row("claims 900 Mpx", lambda: make.tiff(bytes(100), 30_000, 30_000, {259: short(5)}), REJECTED, "too_large"),
    Row(
        "tiles of 32768 x 32768",
        lambda: make.tiff(
            zlib.compress(bytes(9999)),
            HEIGHT,
            WIDTH,
            {259: short(8), 322: (4, (1 << 15,)), 323: (4, (1 << 15,)), 324: (4, (8,)), 325: (4, (9,))},
        ),
        REJECTED,
        "bad_header",
    ),
    Row("tags that claim 500 times the file", make.tiff_tag_bomb, REJECTED, "bad_header"),
    Row("a million fractions", lambda: make.tiff_fractions(1_000_000), REJECTED, "bad_header"),
]
WEBPS = [
    Row("WebP", lambda: encode(PIXELS, "WEBP"), NORMALISED, "format", PIXELS),
    Row("lossless", lambda: encode(PIXELS, "WEBP", lossless=True), NORMALISED, "format", PIXELS),
    Row("alpha", lambda: encode(HALF, "WEBP"), NORMALISED, "format+alpha", ON_WHITE),
    Row("animated", lambda: make.animated("WEBP"), NORMALISED, "format+animated", PIXELS),
    Row(
        "EXIF orientation 6",
        lambda: make.with_orientation("WEBP", 6),
        NORMALISED,
        "format+exif_orientation",
        make.oriented(PIXELS, 6),
    ),
    Row("animated, claims 49 Mpx", lambda: make.webp_claiming(7000, 7000), REJECTED, "too_large"),
    Row("animated, claims 16384 x 16384", lambda: make.webp_claiming(16_384, 16_384), REJECTED, "too_large"),
    Row("cut in half", lambda: encode(PIXELS, "WEBP")[:500], REJECTED, "bad_header"),
]

SECTIONS = {"Other files": OTHERS, "JPEG": JPEGS, "PNG": PNGS, "GIF": GIFS, "BMP": BMPS, "TIFF": TIFFS, "WebP": WEBPS}
