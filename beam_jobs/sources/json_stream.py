"""JSON as a stream: objects and lists of any length, whose keys and elements are read one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from beam_jobs.errors import SourceError

_SPACE = re.compile(r"[ \t\n\r]*")
_BLOCK_CHARS = 1 << 20
_MAX_VALUE_CHARS = 16 << 20  # length of a value that is parsed as a whole; annotations of COCO have less than 1 MB
_LONGEST_TOKEN = 16  # length of a number, literal or escape that the end of a block may cut


class JsonStream:
    """Parses a JSON text of which only a part is in memory; values are those of `json.loads`.

    Examples:
      >>> import io
      >>> stream = JsonStream("a.json", io.StringIO('{"info": 1, "images": [{"id": 1}, 2]}'))
      >>> [(key, list(stream.elements()) if stream.peek() == "[" else stream.value()) for key in stream.members()]
      [('info', 1), ('images', [{'id': 1}, 2])]
    """

    def __init__(self, path: str, stream: TextIO) -> None:
        """Starts at the beginning of the text.

        Args:
          path: path of the file, for messages.
          stream: text of the file.
        """
        self._path, self._stream = path, stream
        self._decoder = json.JSONDecoder()
        self._text, self._position, self._offset = "", 0, 0

    def peek(self) -> str:
        """Returns the next character that is not white space, without consuming it; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text) or not self._read_block():
                return self._text[self._position : self._position + 1]

    def members(self) -> Iterator[str]:
        """Yields the keys of an object; the value of each must be read before the next one."""
        for _ in self._items("{", "}"):
            key = self.value()
            if not isinstance(key, str):
                raise self.error("a key is not text")
            self._consume(":")
            yield key

    def elements(self) -> Iterator[Any]:
        """Yields the elements of a list."""
        return (self.value() for _ in self._items("[", "]"))

    def value(self) -> Any:
        """Returns the next value.

        Raises:
          SourceError: the file cannot be read, the value is not JSON, or it is too long.
        """
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                is_cut = error.pos > len(self._text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated string")
                json_error = self.error(error.msg, error.pos)  # before `_read_block` moves the text
                if not is_cut or not self._read_block():
                    raise json_error from error
                continue
            except (RecursionError, ValueError) as error:  # nested too deep, or a number of too many digits
                raise self.error(str(error)) from error
            # The next block may continue a number, even when the text ends with the `.` or `e-` after its digits.
            if end + 2 < len(self._text) or not self._read_block():
                self._position = end
                return value

    def error(self, problem: str, position: int | None = None) -> SourceError:
        """Returns the error for text that is not JSON; `position` is its index in memory, by default the next one."""
        character = self._offset + (self._position if position is None else position)
        return SourceError(f"{self._path} is not JSON: {problem} at character {character:,}")

    def _items(self, start: str, end: str) -> Iterator[None]:
        """Yields at the start of each item of a list or object, and consumes the marks around the items."""
        self._consume(start)
        if self.peek() == end:
            self._consume(end)
            return
        while True:
            yield
            if self._consume(f",{end}") == end:
                return

    def _consume(self, allowed: str) -> str:
        character = self.peek()
        if not character or character not in allowed:
            raise self.error(f"{' or '.join(allowed)} is missing")
        self._position += 1
        return character

    def _read_block(self) -> bool:
        """Reads as many characters as are in memory, but at least a block; returns False at the end of the file."""
        unread = self._text[self._position :]
        if len(unread) > _MAX_VALUE_CHARS:
            raise self.error(f"a value of more than {_MAX_VALUE_CHARS:,} characters begins")
        try:
            block = self._stream.read(max(_BLOCK_CHARS, len(unread)))
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self.error(str(error)) from error
        if block:
            self._offset += self._position
            self._text, self._position = unread + block, 0
        return bool(block)
