"""The blocks of a GIF, walked before Pillow does. GIF 89a specification.

Pillow takes one step for each of up to 25 million sub-blocks, and joins those of a comment in quadratic time.
"""

from __future__ import annotations

from beam_jobs.images.header.fields import bad_header

_SCREEN = 13  # magic bytes and logical screen descriptor
_IMAGE, _EXTENSION, _END = 0x2C, 0x21, 0x3B
_MAX_STEPS = 4096  # from image to image: 1 MB of comments and profiles
_MAX_IMAGE_STEPS = 250_000  # through an image: 50 MB in full sub-blocks are 206,000


def is_animated(data: bytes) -> bool:
    """Returns whether a second image follows the first; False as well when the file ends before that is known.

    Raises:
      BadImage: there are more blocks than an honest file has.
    """
    walk = _Walk(data)
    walk.skip_colours(_SCREEN - 3, _SCREEN)
    if walk.next_image():
        walk.skip_colours(walk.position + 8, walk.position + 9)
        walk.skip_blocks(walk.position + 1, _MAX_IMAGE_STEPS)  # 1: how many bits the first codes have
        return walk.next_image()
    return False


class _Walk:
    """A place in a GIF that only moves forward, in a limited number of steps."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._steps = 0
        self.position = 0

    def skip_colours(self, flags: int, position: int) -> None:
        """Moves behind the colour table at `position`, if the byte at `flags` says that there is one."""
        packed = self._data[flags] if flags < len(self._data) else 0
        self.position = position + (3 << (packed & 7) + 1 if packed & 0x80 else 0)

    def next_image(self) -> bool:
        """Moves behind the mark of the next image; returns whether there is one."""
        self._steps = 0
        while self.position < len(self._data) and self._data[self.position] != _END:
            kind = self._data[self.position]
            self.position += 1
            if kind == _IMAGE:
                return True
            if kind == _EXTENSION:
                self.skip_blocks(self.position + 1, _MAX_STEPS)
            self._step(_MAX_STEPS)
        return False

    def skip_blocks(self, position: int, limit: int) -> None:
        """Moves behind the sub-blocks that start at `position`."""
        size = -1
        while size and position < len(self._data):
            size = self._data[position]
            position += 1 + size
            self._step(limit)
        self.position = position

    def _step(self, limit: int) -> None:
        self._steps += 1
        if self._steps > limit:
            raise bad_header("gif", f"over {limit} blocks before the next image")
