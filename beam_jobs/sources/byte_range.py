"""Where an image lies inside a container: a tar or zip archive, a TFRecord file, or a spool of the ingest itself."""

from __future__ import annotations

from dataclasses import dataclass

STORED = "stored"  # the bytes as they are
DEFLATE = "deflate"  # a compressed member of a zip archive
EXAMPLE = "example"  # a record of a TFRecord file; the image is a feature of it
SPOOL = "spool"  # bytes that the ingest keeps between its stages; the path is relative to the work directory
METHODS = (STORED, DEFLATE, EXAMPLE, SPOOL)


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A run of bytes in a container.

    Attributes:
      method: how the bytes become an image, one of `METHODS`.
      offset: where the run begins, in bytes of the unpacked container.
      length: bytes of the run.
      path: of the container, absolute or relative to the source.
      feature: of `example`, the name of the feature that holds the image.
      packing: how the container as a whole is compressed, one of `plain.PACKINGS`; empty when it is not.
    """

    method: str
    offset: int
    length: int
    path: str
    feature: str = ""
    packing: str = ""

    @property
    def text(self) -> str:
        """The slice as one piece of text, for tables; `parse` takes it back."""
        how = f"{self.method}+{self.packing}" if self.packing else self.method
        return f"{how}:{self.offset}:{self.length}:{len(self.feature)}:{self.feature}{self.path}"

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Reads `text` back.

        Raises:
          ValueError: it is not the text of a slice.
        """
        how, offset, length, feature_length, rest = text.split(":", 4)
        method, _, packing = how.partition("+")
        if method not in METHODS:
            raise ValueError(f"{text!r:.80} is not the text of a slice")
        cut = int(feature_length)
        return cls(
            method=method,
            offset=int(offset),
            length=int(length),
            feature=rest[:cut],
            path=rest[cut:],
            packing=packing,
        )
