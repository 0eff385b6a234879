"""The headers of a tar archive, one member after the other. Each has a bound, and no member costs another one.

`tarfile` parses single blocks here, no more: for one member it reads names, attributes and sparse maps of any size, and
it copies the attributes that are for all members to each. Sources of the format: POSIX.1-2001, "pax Interchange
Format", and the GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

# Of all headers of one member together, as much as Linux allows for its attributes.
MAX_BYTES = 64 << 10
MAX_ATTRIBUTES = 1000

_EXTENDED = (482, 504)  # where a sparse header, and a block that goes on with its map, say whether another one follows
_LENGTH_DIGITS = 20
_SPARSE = "GNU.sparse."


@dataclass(frozen=True, kw_only=True)
class TarMember:
    """What the headers of a member say.

    Attributes:
      name: as written; what is not UTF-8 are surrogates.
      kind: type flag, such as `tarfile.REGTYPE`.
      is_sparse: whether the bytes are those of a file with holes.
      offset: byte of the archive at which its headers begin.
      data: byte at which its bytes begin.
      size: how many those are; negative ones are forged.
      end: byte at which the next header may begin.
    """

    name: str
    kind: bytes
    is_sparse: bool
    offset: int
    data: int
    size: int
    end: int


@dataclass
class TarHeaders:
    """Reads the headers of an archive.

    Attributes:
      stream: seekable, of the unpacked bytes.
      everywhere: attributes of all members that follow, of the few that are used.
    """

    stream: BinaryIO
    everywhere: dict[str, str] = field(default_factory=dict)

    def member(self, offset: int) -> TarMember | None:
        """Returns the member whose headers begin at a byte; None where no header does.

        Raises:
          ValueError: the headers are damaged, or larger than allowed.
          OSError: the archive cannot be read.
        """
        own: dict[str, str] = {}
        place = offset
        while header := self._block(place):
            place += tarfile.BLOCKSIZE
            if header.type not in (*_NAMES, *_ATTRIBUTES):
                return self._member(header, offset, place, {**self.everywhere, **own})
            length = place + header.size - offset
            if header.size < 0 or length > MAX_BYTES:
                raise ValueError(
                    f"a header claims {header.size} bytes; {MAX_BYTES} are allowed for those of one member"
                )
            content = self.stream.read(header.size)
            if header.type in _NAMES:
                found = {_NAMES[header.type]: _text(content.partition(b"\0")[0])}
            else:
                found = dict(_attributes(content))
            # The first of two counts, as it does for tarfile; what is for all members is for want of an own one.
            if header.type == tarfile.XGLTYPE:
                self.everywhere.update(found)
            else:
                own = {**found, **own}
            place += _padded(header.size)
        if place > offset:
            raise ValueError("a header of names or attributes has no member after it")
        return None

    def _block(self, place: int) -> tarfile.TarInfo | None:
        self.stream.seek(place)
        try:
            return tarfile.TarInfo.frombuf(self.stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return None

    def _member(self, header: tarfile.TarInfo, offset: int, place: int, attributes: dict[str, str]) -> TarMember:
        is_sparse = header.type == tarfile.GNUTYPE_SPARSE or _SPARSE in attributes
        data = self._after_map(place) if header.type == tarfile.GNUTYPE_SPARSE else place
        size = _size(attributes["size"]) if "size" in attributes else header.size
        has_data = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES
        return TarMember(
            name=attributes.get("path", header.name),
            kind=header.type,
            is_sparse=is_sparse,
            offset=offset,
            data=data,
            size=size,
            end=data + (_padded(size) if has_data else 0),
        )

    def _after_map(self, place: int) -> int:
        """Returns where the map of a sparse file ends; it is passed over block by block."""
        self.stream.seek(place - tarfile.BLOCKSIZE)
        flag = _EXTENDED[0]
        while len(block := self.stream.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE and block[flag]:
            place += tarfile.BLOCKSIZE
            flag = _EXTENDED[1]
        return place


# Type of a header -> the attribute it stands for.
_NAMES = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_ATTRIBUTES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def _attributes(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields the attributes that are used, out of records such as `17 path=cat/a.jpg` and a line feed.

    Raises:
      ValueError: they are damaged, or more than allowed.
    """
    place = count = 0
    while place < len(content) and content[place]:
        digits = content[place : place + _LENGTH_DIGITS].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        count += 1
        if not len(digits) + 2 < length <= len(content) - place or count > MAX_ATTRIBUTES:
            raise ValueError(f"attribute {count} of a header is damaged, or more than the {MAX_ATTRIBUTES} allowed")
        key, _, value = content[place + len(digits) + 1 : place + length - 1].partition(b"=")
        place += length
        if key.startswith(_SPARSE.encode()):
            yield _SPARSE, ""
        if key in (b"path", b"GNU.sparse.name"):
            yield "path", _text(value.rstrip(b"/"))
        elif key == b"size":
            yield "size", _text(value)


def _size(text: str) -> int:
    if not text.isdecimal() or len(text) > _LENGTH_DIGITS:
        raise ValueError(f"the size of a member is {text!r:.40}")
    return int(text)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE
