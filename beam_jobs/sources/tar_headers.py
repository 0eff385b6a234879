"""The headers of a tar archive, read member by member in bounded memory; a bad member does not affect the others.

`tarfile` only parses single blocks here: its reader of members reads names, attributes and sparse maps of any size, and
copies global attributes to every member. Sources of the format: POSIX.1-2001, "pax Interchange Format", and the GNU tar
manual, "Basic Tar Format".
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

# Size of all headers of a member together: the limit of Linux for the attributes of a file.
MAX_BYTES = 64 << 10
MAX_ATTRIBUTES = 1000

_EXTENDED_FLAGS = (482, 504)  # offset of the flag "another block of the map follows" in a sparse header, and in a block
_LENGTH_DIGITS = 20
_SPARSE = "GNU.sparse."


@dataclass(frozen=True, kw_only=True)
class TarMember:
    """A member of a tar archive, as its headers declare it.

    Attributes:
      name: name as written; bytes that are not UTF-8 are surrogates.
      kind: type flag, such as `tarfile.REGTYPE`.
      is_sparse: whether the member is a sparse file.
      data: offset of its data, in bytes.
      size: size of its data, in bytes; negative in a forged header.
      end: offset of the next header, in bytes.
    """

    name: str
    kind: bytes
    is_sparse: bool
    data: int
    size: int
    end: int


@dataclass
class TarHeaders:
    """Reads the headers of an archive.

    Attributes:
      stream: seekable stream of the unpacked bytes.
      global_attributes: attributes of all following members; only those that `TarMember` needs.
    """

    stream: BinaryIO
    global_attributes: dict[str, str] = field(default_factory=dict)

    def member(self, offset: int) -> TarMember | None:
        """Returns the member whose headers start at an offset; None when no header starts there.

        Raises:
          ValueError: the headers are damaged, or larger than allowed.
          OSError: the archive cannot be read.
        """
        attributes: dict[str, str] = {}
        position = offset
        while header := self._read_block(position):
            position += tarfile.BLOCKSIZE
            if header.type not in (*_NAME_HEADERS, *_ATTRIBUTE_HEADERS):
                return self._make_member(header, position, {**self.global_attributes, **attributes})
            headers_bytes = position + header.size - offset
            if header.size < 0 or headers_bytes > MAX_BYTES:
                raise ValueError(
                    f"a header declares {header.size} bytes; the headers of one member may have at most {MAX_BYTES}"
                )
            content = self.stream.read(header.size)
            if header.type in _NAME_HEADERS:
                new_attributes = {_NAME_HEADERS[header.type]: _decode(content.partition(b"\0")[0])}
            else:
                new_attributes = dict(_parse_attributes(content))
            # Of two attributes of one name, the first applies, as in `tarfile`; a global one, if the member has none.
            if header.type == tarfile.XGLTYPE:
                self.global_attributes.update(new_attributes)
            else:
                attributes = {**new_attributes, **attributes}
            position += _padded_size(header.size)
        if position > offset:
            raise ValueError("no member follows a header of names or attributes")
        return None

    def _read_block(self, position: int) -> tarfile.TarInfo | None:
        self.stream.seek(position)
        try:
            return tarfile.TarInfo.frombuf(self.stream.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return None

    def _make_member(self, header: tarfile.TarInfo, headers_end: int, attributes: dict[str, str]) -> TarMember:
        is_sparse = header.type == tarfile.GNUTYPE_SPARSE or _SPARSE in attributes
        data = self._skip_map(headers_end) if header.type == tarfile.GNUTYPE_SPARSE else headers_end
        size = _parse_size(attributes["size"]) if "size" in attributes else header.size
        has_data = header.isreg() or header.type not in tarfile.SUPPORTED_TYPES  # as in `tarfile`
        return TarMember(
            name=attributes.get("path", header.name),
            kind=header.type,
            is_sparse=is_sparse,
            data=data,
            size=size,
            end=data + (_padded_size(size) if has_data else 0),
        )

    def _skip_map(self, position: int) -> int:
        """Returns the offset of the end of a sparse map, which is skipped block by block."""
        self.stream.seek(position - tarfile.BLOCKSIZE)
        flag = _EXTENDED_FLAGS[0]
        while len(block := self.stream.read(tarfile.BLOCKSIZE)) == tarfile.BLOCKSIZE and block[flag]:
            position += tarfile.BLOCKSIZE
            flag = _EXTENDED_FLAGS[1]
        return position


# Type of a header -> the attribute that it holds.
_NAME_HEADERS = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_ATTRIBUTE_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


def _parse_attributes(content: bytes) -> Iterator[tuple[str, str]]:
    """Yields name and value of the attributes to use; each is a record such as `17 path=cat/a.jpg` and a line feed.

    Raises:
      ValueError: a record is damaged, or there are more records than allowed.
    """
    position = count = 0
    while position < len(content) and content[position]:
        digits = content[position : position + _LENGTH_DIGITS].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        count += 1
        if count > MAX_ATTRIBUTES:
            raise ValueError(f"a header has more than {MAX_ATTRIBUTES} attributes, the maximum")
        if not len(digits) + 2 < length <= len(content) - position:
            raise ValueError(f"attribute {count} of a header is damaged")
        key, _, value = content[position + len(digits) + 1 : position + length - 1].partition(b"=")
        position += length
        if key.startswith(_SPARSE.encode()):
            yield _SPARSE, ""  # marks a sparse file; the values are not needed
        if key in (b"path", b"GNU.sparse.name"):
            yield "path", _decode(value.rstrip(b"/"))
        elif key == b"size":
            yield "size", _decode(value)


def _parse_size(text: str) -> int:
    if not text.isdecimal() or len(text) > _LENGTH_DIGITS:
        raise ValueError(f"the size of a member is {text!r:.40}")
    return int(text)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _padded_size(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE
