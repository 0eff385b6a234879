"""Image files that no honest program writes, or few, put together byte by byte."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from tests.make_images import crop, encode, jpeg

PIXELS = crop(0)  # uint8[60, 80, 3]
HEIGHT, WIDTH = PIXELS.shape[:2]
GREY = np.asarray(Image.fromarray(PIXELS).convert("L"))
SIXTEEN = GREY.astype(np.uint16) * 257
PNG_START = b"\x89PNG\r\n\x1a\n"


# JPEG: a chain of segments, then the scan. ITU T.81, annex B.


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(payload) + 2) + payload


def after_soi(data: bytes, *pieces: bytes) -> bytes:
    return data[:2] + b"".join(pieces) + data[2:]


def sof_of(data: bytes) -> int:
    """Returns where the frame header starts; the photographs hold no thumbnail that could be taken for it."""
    return max(data.find(b"\xff\xc0\x00"), data.find(b"\xff\xc2\x00"))


def with_frame(data: bytes, marker: int = 0, precision: int = 8, height: int = HEIGHT, width: int = WIDTH) -> bytes:
    """Returns a JPEG whose frame header says something else."""
    changed, start = bytearray(data), sof_of(data)
    changed[start + 1] = marker or changed[start + 1]
    changed[start + 4 : start + 9] = struct.pack(">BHH", precision, height, width)
    return bytes(changed)


def with_components(count: int) -> bytes:
    """Returns a JPEG whose frame and scan name `count` components."""
    data = jpeg()
    start, scan = sof_of(data), data.index(b"\xff\xda")
    frame = struct.pack(">BHHB", 8, HEIGHT, WIDTH, count) + b"".join(bytes([n + 1, 0x11, 0]) for n in range(count))
    head = bytes([count]) + b"".join(bytes([n + 1, 0]) for n in range(count)) + b"\x00\x3f\x00"
    tables = data[start + 2 + int.from_bytes(data[start + 2 : start + 4], "big") : scan]
    coded = data[scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big") :]
    return data[:start] + segment(0xC0, frame) + tables + segment(0xDA, head) + coded


def without_segments(data: bytes, marker: int) -> bytes:
    """Returns a JPEG without the segments of one kind before its scan."""
    kept, position = data[:2], 2
    while data[position + 1] != 0xDA:
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        kept += b"" if data[position + 1] == marker else data[position:end]
        position = end
    return kept + data[position:]


def many_scans(count: int, side: int) -> bytes:
    """Returns a progressive JPEG of side x side pixels whose scans, a few bytes each, all cover every block."""
    data = encode(np.full((side, side), 128, np.uint8), "JPEG", progressive=True)
    scan = data.index(b"\xff\xda")
    # One Huffman code for "the next 2^14 + n blocks end here" (EOB14, symbol 0xE0), 14 bits of n after it.
    table = segment(0xC4, b"\x10" + b"\x01" + b"\x00" * 15 + b"\xe0")
    runs = -(-(((side + 7) // 8) ** 2) // 16384)
    coded = bytes(-(-runs * 15 // 8))
    later = segment(0xDA, b"\x01\x01\x00\x01\x3f\x00") + coded
    first_end = data.index(b"\xff\xc4", scan) if b"\xff\xc4" in data[scan:] else data.index(b"\xff\xda", scan + 2)
    return data[:first_end] + table + later * count + b"\xff\xd9"


def exif(tags: bytes, count: int, extra: bytes = b"", order: str = "<") -> bytes:
    """Returns an EXIF block of one directory."""
    head = (b"II*\x00" if order == "<" else b"MM\x00*") + struct.pack(order + "I", 8)
    return head + struct.pack(order + "H", count) + tags + struct.pack(order + "I", 0) + extra


def orientation_tag(orientation: int) -> bytes:
    return exif(struct.pack("<HHII", 0x0112, 3, 1, orientation), 1)


def with_orientation(kind: str, orientation: int) -> bytes:
    """Returns a file of a format of Pillow with an EXIF orientation."""
    block = Image.Exif()
    block[0x0112] = orientation
    return encode(PIXELS, kind, exif=block)


def oriented(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Returns what pixels stored with an EXIF orientation show, after the words of EXIF 2.32."""
    # Where the first row and the first column of the stored pixels are seen.
    seen = {
        1: pixels,  # top, left
        2: pixels[:, ::-1],  # top, right
        3: pixels[::-1, ::-1],  # bottom, right
        4: pixels[::-1],  # bottom, left
        5: pixels.swapaxes(0, 1),  # left, top
        6: pixels.swapaxes(0, 1)[:, ::-1],  # right, top
        7: pixels.swapaxes(0, 1)[::-1, ::-1],  # right, bottom
        8: pixels.swapaxes(0, 1)[::-1],  # left, bottom
    }
    return seen[orientation]


def exif_jpeg(block: bytes) -> bytes:
    return after_soi(jpeg(), segment(0xE1, b"Exif\x00\x00" + block))


def exif_bomb() -> bytes:
    """Returns an EXIF block of 64 KB whose 5,000 tags each claim the whole of it: 300 MB to who reads them all."""
    size = 65_000
    tags = b"".join(struct.pack("<HHII", 0x9000 + n, 7, size - 20, 8) for n in range(5000))
    return exif(tags, 5000).ljust(size, b"\x00")


def ycck() -> bytes:
    """Returns a CMYK JPEG whose inks are stored as YCbCr and black, inverted, as Photoshop writes them."""
    inks = np.asarray(Image.fromarray(PIXELS).convert("CMYK"))
    # Pillow inverts what it writes, and the decoder what it transforms; so it is the inks that are transformed.
    stored = 255 - np.asarray(Image.fromarray(inks[..., :3]).convert("YCbCr"))
    data = bytearray(encode(Image.fromarray(np.dstack([stored, inks[..., 3]]), "CMYK"), "JPEG", quality=95))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def cmyk_without_adobe() -> bytes:
    """Returns a CMYK JPEG whose inks are written as they are: without Adobe's marker nothing inverts them."""
    inks = Image.fromarray(255 - np.asarray(Image.fromarray(PIXELS).convert("CMYK")), "CMYK")
    return without_segments(encode(inks, "JPEG", quality=95), 0xEE)


def icc_profile(size: int = 560) -> bytes:
    """Returns what passes for the head of an RGB display profile."""
    return struct.pack(">I", size) + b"ADBE\x02\x10\x00\x00mntrRGB XYZ " + bytes(16) + b"acspAPPL" + bytes(size - 44)


def malformed_mpo() -> bytes:
    return after_soi(
        jpeg(), segment(0xE2, b"MPF\x00II*\x00\x08\x00\x00\x00\x01\x00\x00\xb0\x07\x00\x04\x00\x00\x000100")
    )


# PNG: chunks. Pillow writes few of the kinds that the format knows, so rows are packed here.


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def rows_of(samples: np.ndarray, depth: int) -> bytes:
    """Returns PNG rows, unfiltered, of uint16[height, width, channels]."""
    lines = []
    for line in samples.reshape(samples.shape[0], -1):
        if depth == 16:
            lines.append(line.astype(">u2").tobytes())
        elif depth == 8:
            lines.append(line.astype(np.uint8).tobytes())
        else:
            bits = (line[:, None] >> np.arange(depth - 1, -1, -1)) & 1
            lines.append(np.packbits(bits.astype(np.uint8)).tobytes())
    return b"".join(b"\x00" + line for line in lines)


_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def raw_png(
    samples: np.ndarray, depth: int, colour: int, before: bytes = b"", after: bytes = b"", interlaced: bool = False
) -> bytes:
    """Returns a PNG of any kind.

    Args:
      samples: [height, width] or [height, width, channels], each below 2^depth.
      depth: bits per sample.
      colour: colour type of the format: 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA.
      before: chunks to put before the pixels, PLTE and tRNS included.
      after: chunks to put after them.
      interlaced: whether in seven passes.
    """
    samples = samples.reshape(*samples.shape[:2], _CHANNELS[colour]).astype(np.uint16)
    height, width = samples.shape[:2]
    passes = [samples[top::down, left::right] for top, left, down, right in _ADAM7] if interlaced else [samples]
    pixels = zlib.compress(b"".join(rows_of(part, depth) for part in passes if part.size), 6)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return PNG_START + chunk(b"IHDR", head) + before + chunk(b"IDAT", pixels) + after + chunk(b"IEND", b"")


def before_pixels(data: bytes, *chunks: bytes) -> bytes:
    """Returns a PNG with chunks put between its header and the rest."""
    return data[:33] + b"".join(chunks) + data[33:]


def before_end(data: bytes, *chunks: bytes) -> bytes:
    return data[:-12] + b"".join(chunks) + data[-12:]


def ztxt(size: int) -> bytes:
    return chunk(b"zTXt", b"Comment\x00\x00" + zlib.compress(bytes(size), 9))


def iccp(size: int) -> bytes:
    return chunk(b"iCCP", b"profile\x00\x00" + zlib.compress(bytes(size), 9))


def frames_chunk(count: int) -> bytes:
    """Returns the chunk by which an animated PNG says how many frames it has."""
    return chunk(b"acTL", struct.pack(">II", count, 0))


def palette() -> tuple[np.ndarray, bytes]:
    """Returns indices uint8[60, 80] of 4 colours, and the PLTE chunk."""
    image = Image.fromarray(PIXELS).quantize(4)
    return np.asarray(image), chunk(b"PLTE", bytes(image.getpalette()[:12]))


def bilevel_png(side: int) -> bytes:
    """Returns a white square of one bit a pixel: 8 kB for 64 million of them."""
    packer = zlib.compressobj(9)
    row = b"\x00" + b"\xff" * (side // 8)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return PNG_START + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


# GIF, BMP, TIFF, WebP.


def animated(kind: str, count: int = 3, **options) -> bytes:
    frames = [Image.fromarray(crop(seed)) for seed in range(count)]
    out = io.BytesIO()
    frames[0].save(out, kind, save_all=True, append_images=frames[1:], **options)
    return out.getvalue()


def gif(
    screen: tuple[int, int] = (16, 16), frame: tuple[int, int] = (16, 16), frames: int = 1, before: bytes = b""
) -> bytes:
    """Returns a GIF whose screen and frames, width and height, may disagree.

    Args:
      screen: width and height of the logical screen.
      frame: width and height of each frame, at the upper left corner.
      frames: how many of them.
      before: blocks before the first.
    """
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + b"\x20\x40\x60\xff\xff\xff"
    # Two bits a code at first; a clear code before every pixel keeps the code size at 3 bits.
    codes = "".join(f"{code:03b}"[::-1] for code in [4, 0] * (frame[0] * frame[1]) + [5])
    packed = np.packbits([int(bit) for bit in codes], bitorder="little").tobytes()
    blocks = b"".join(bytes([len(packed[n : n + 255])]) + packed[n : n + 255] for n in range(0, len(packed), 255))
    image = b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02" + blocks + b"\x00"
    return head + before + image * frames + b";"


def bmp(height: int = HEIGHT, width: int = WIDTH, **fields: int) -> bytes:
    """Returns a BMP of 24 bits a pixel whose header may say something else."""
    data = bytearray(encode(PIXELS, "BMP"))
    struct.pack_into("<ii", data, 18, width, height)
    struct.pack_into("<H", data, 28, fields.get("bits", 24))
    struct.pack_into("<I", data, 30, fields.get("compression", 0))
    return bytes(data)


def top_down_bmp() -> bytes:
    """Returns a BMP of negative height, whose first row is the upper one."""
    data = bytearray(encode(PIXELS[::-1], "BMP"))
    struct.pack_into("<i", data, 22, -HEIGHT)
    return bytes(data)


def rle_bmp() -> bytes:
    """Returns a BMP of runs: every row one run of a colour of its own."""
    rows = b"".join(bytes([WIDTH, n * 4, 0, 0]) for n in range(HEIGHT)) + b"\x00\x01"
    colours = b"".join(bytes([n, n, n, 0]) for n in range(256))
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, HEIGHT, 1, 8, 1, len(rows), 0, 0, 256, 0)
    offset = 14 + len(head) + len(colours)
    return struct.pack("<2sIHHI", b"BM", offset + len(rows), 0, 0, offset) + head + colours + rows


def tiff(
    strip: bytes, height: int, width: int, tags: dict[int, tuple[int, tuple[int, ...]]], following: int = 0
) -> bytes:
    """Returns a TIFF of one strip.

    Args:
      strip: the pixels, packed as the tags say.
      height: rows it claims.
      width: columns it claims.
      tags: tag -> TIFF type (1 byte, 3 short, 4 long, 7 undefined) and values, over those of an 8-bit grey image.
      following: offset of the next directory.
    """
    sizes = {1: 1, 3: 2, 4: 4, 7: 1}
    codes = {1: "B", 3: "H", 4: "I", 7: "B"}
    merged = {
        256: (4, (width,)),
        257: (4, (height,)),
        258: (3, (8,)),
        259: (3, (1,)),
        262: (3, (1,)),
        273: (4, (8,)),
        277: (3, (1,)),
        278: (4, (height,)),
        279: (4, (len(strip),)),
    } | tags
    if 322 in tags:  # tiles instead of strips
        merged = {tag: value for tag, value in merged.items() if tag not in (273, 278, 279)}
    start = 8 + len(strip) + len(strip) % 2
    behind = start + 6 + 12 * len(merged)
    entries, values = b"", b""
    for tag, (kind, numbers) in sorted(merged.items()):
        packed = struct.pack(f"<{len(numbers)}{codes[kind]}", *numbers)
        assert len(packed) == sizes[kind] * len(numbers)
        if len(packed) > 4:
            place = struct.pack("<I", behind + len(values))
            values += packed + b"\x00" * (len(packed) % 2)
        else:
            place = packed.ljust(4, b"\x00")
        entries += struct.pack("<HHI", tag, kind, len(numbers)) + place
    directory = struct.pack("<H", len(merged)) + entries + struct.pack("<I", following)
    return b"II*\x00" + struct.pack("<I", start) + strip + b"\x00" * (len(strip) % 2) + directory + values


def tiff_tag_bomb(size: int = 1 << 20, count: int = 500) -> bytes:
    """Returns a TIFF whose unknown tags each claim the whole file: `size` x `count` bytes to who reads them all."""
    honest = encode(PIXELS, "TIFF")
    data = bytearray(honest.ljust(size, b"\x00"))
    start = int.from_bytes(data[4:8], "little")
    known = int.from_bytes(data[start : start + 2], "little")
    entries = data[start + 2 : start + 2 + 12 * known]
    entries += b"".join(struct.pack("<HHII", 50_000 + n, 7, size - 8, 8) for n in range(count))
    data += struct.pack("<H", known + count) + entries + bytes(4)
    data[4:8] = struct.pack("<I", size)
    return bytes(data)


def tiff_fractions(count: int) -> bytes:
    """Returns a TIFF whose resolution is given by `count` fractions instead of one."""
    values = struct.pack("<II", 72, 1) * count
    data = bytearray(tiff(values + GREY.tobytes(), HEIGHT, WIDTH, {273: (4, (8 + len(values),)), 282: (4, (8,))}))
    entry = data.index(struct.pack("<HHI", 282, 4, 1), len(values))
    struct.pack_into("<HI", data, entry + 2, 5, count)
    return bytes(data)


def many_pages(count: int) -> bytes:
    """Returns a TIFF of one picture and a chain of `count` directories."""
    first = tiff(GREY.tobytes(), HEIGHT, WIDTH, {})
    start = int.from_bytes(first[4:8], "little")
    directory = first[start : start + 2 + 12 * int.from_bytes(first[start : start + 2], "little")]
    size, end = len(directory) + 4, len(first)
    chain = b"".join(directory + struct.pack("<I", end + (n + 1) * size if n + 1 < count else 0) for n in range(count))
    return first[:4] + struct.pack("<I", end) + first[8:] + chain


def webp_claiming(width: int, height: int) -> bytes:
    """Returns an animated WebP whose canvas is larger than the frames it holds."""
    data = bytearray(animated("WEBP"))
    place = data.index(b"VP8X") + 12
    data[place : place + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)
