"""JSON as a stream: objects and lists of any length, whose keys and elements are read one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from beam_jobs.errors import SourceError

_SPACE = re.compile(r"[ \t\n\r]*")
_BLOCK_CHARS = 1 << 20
_MAX_VALUE_CHARS = 16 << 20  # of a value that is read whole; the annotations of COCO have less than 1 MB
_LONGEST_TOKEN = 16  # a cut number, literal or escape


class JsonStream:
    """A JSON text of which a part is in memory; its values are those of `json.loads`.

    Examples:
      >>> import io
      >>> stream = JsonStream("a.json", io.StringIO('{"info": 1, "images": [{"id": 1}, 2]}'))
      >>> [(key, list(stream.elements()) if stream.peek() == "[" else stream.value()) for key in stream.members()]
      [('info', 1), ('images', [{'id': 1}, 2])]
    """

    def __init__(self, path: str, stream: TextIO) -> None:
        """Starts at the beginning.

        Args:
          path: path of the file, for messages.
          stream: text of the file.
        """
        self._path, self._stream = path, stream
        self._decoder = json.JSONDecoder()
        self._text, self._position, self._offset = "", 0, 0

    def peek(self) -> str:
        """Returns the next character that is no white space; empty at the end."""
        while True:
            match = _SPACE.match(self._text, self._position)
            self._position = match.end() if match else self._position
            if self._position < len(self._text) or not self._read():
                return self._text[self._position : self._position + 1]

    def members(self) -> Iterator[str]:
        """Yields the keys of an object; the value of each must be read before the next one."""
        for _ in self._items("{", "}"):
            key = self.value()
            if not isinstance(key, str):
                raise self.error("a key is no text")
            self._take(":")
            yield key

    def elements(self) -> Iterator[Any]:
        """Yields the elements of a list."""
        return (self.value() for _ in self._items("[", "]"))

    def value(self) -> Any:
        """Returns the next value.

        Raises:
          SourceError: the file cannot be read, is not JSON there, or the value is too long.
        """
        self.peek()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                is_cut = error.pos > len(self._text) - _LONGEST_TOKEN or error.msg.startswith("Unterminated string")
                problem = self.error(error.msg, error.pos)
                if not is_cut or not self._read():
                    raise problem from error
                continue
            except (RecursionError, ValueError) as error:  # nested too deep, or a number of too many digits
                raise self.error(str(error)) from error
            # The next part of the file may continue a number, of which `.` or `e-` is here.
            if end + 2 < len(self._text) or not self._read():
                self._position = end
                return value

    def error(self, problem: str, position: int | None = None) -> SourceError:
        """Returns the error of text that is not JSON at a position in memory, by default the next one."""
        character = self._offset + (self._position if position is None else position)
        return SourceError(f"{self._path} is not JSON: {problem} at character {character:,}")

    def _items(self, start: str, end: str) -> Iterator[None]:
        self._take(start)
        if self.peek() == end:
            self._take(end)
            return
        while True:
            yield
            if self._take(f",{end}") == end:
                return

    def _take(self, allowed: str) -> str:
        character = self.peek()
        if not character or character not in allowed:
            raise self.error(f"{' or '.join(allowed)} is missing")
        self._position += 1
        return character

    def _read(self) -> bool:
        """Reads as many characters as are in memory, but at least a block; returns whether there were any."""
        rest = self._text[self._position :]
        if len(rest) > _MAX_VALUE_CHARS:
            raise self.error(f"a value of more than {_MAX_VALUE_CHARS:,} characters begins")
        try:
            block = self._stream.read(max(_BLOCK_CHARS, len(rest)))
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self.error(str(error)) from error
        if block:
            self._offset += self._position
            self._text, self._position = rest + block, 0
        return bool(block)
