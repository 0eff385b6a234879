"""The peers, their environments, and the kind of Feedline that each is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

_HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One peer.

    Attributes:
      module: module of its script.
      kind: kind of the script; empty for a script without kinds.
      base_is: description of its rate in the results.
      counterpart: kind of `peer_feedline` to compare it with.
      requirements: file of the pinned packages of its environment; None for a peer in this environment.
      distribution: package that a peer in this environment needs.
    """

    module: str
    base_is: str
    kind: str = ""
    counterpart: str = "copy-basic"
    requirements: Path | None = None
    distribution: str = ""


def _separate(name: str, base_is: str, kind: str = "", counterpart: str = "copy-basic") -> Peer:
    """Returns a peer with a separate environment."""
    requirements = _HERE / "requirements" / f"{name}.txt"
    module = f"benchmarks.peers.peer_{name}"
    return Peer(module=module, base_is=base_is, kind=kind, counterpart=counterpart, requirements=requirements)


_TFX = partial(Peer, module="benchmarks.peers.peer_tfx", distribution="tfx")
_TFDS = partial(Peer, module="benchmarks.peers.peer_tfds", distribution="tensorflow-datasets")
PEERS: dict[str, Peer] = {
    "tfx": _TFX(kind="plain", base_is="TFX WriteSplit in memory, no decode check"),
    "tfx-checked": _TFX(kind="checked", base_is="TFX WriteSplit in memory, the same decode check"),
    "tfds": _TFDS(kind="plain", base_is="TFDS builder, no decode check"),
    "tfds-checked": _TFDS(kind="checked", base_is="TFDS builder, the same decode check"),
    "img2dataset": _separate(
        "img2dataset", "img2dataset from the same local server, decode check with OpenCV", counterpart="urls"
    ),
    "webdataset": _separate("webdataset", "WebDataset ShardWriter, the same decode check"),
    "litdata": _separate("litdata", "LitData optimize, no decode check", "plain"),
    "litdata-checked": _separate("litdata", "LitData optimize, whole decode with OpenCV", "checked"),
    "daft": _separate("daft", "Daft write_parquet, no decode check", "plain"),
    "daft-checked": _separate("daft", "Daft write_parquet, whole decode", "checked"),
    "huggingface": _separate("huggingface", "Hugging Face ImageFolder to Parquet, no decode check", "plain"),
    "huggingface-checked": _separate(
        "huggingface", "Hugging Face ImageFolder to Parquet, decode with Pillow", "checked"
    ),
    "arrayrecord": _separate("arrayrecord", "ArrayRecord, no decode check", "plain"),
    "arrayrecord-checked": _separate("arrayrecord", "ArrayRecord, whole decode with OpenCV", "checked"),
}
FEEDLINE = "benchmarks.peers.peer_feedline"
ALL_FACTS = "copy-all"  # measured in addition to every counterpart that reads files
