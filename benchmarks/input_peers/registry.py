"""The peers and their environments."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.peers.registry import PEERS as INGEST_PEERS
from benchmarks.peers.registry import Peer

_REQUIREMENTS = Path(__file__).parent / "requirements"


def _separate(name: str, base_is: str) -> Peer:
    """Returns a peer with a separate environment."""
    return Peer(
        module=f"benchmarks.input_peers.peer_{name}", base_is=base_is, requirements=_REQUIREMENTS / f"{name}.txt"
    )


_TFDS = partial(Peer, module="benchmarks.input_peers.peer_tfds", distribution="tensorflow-datasets")
PEERS: dict[str, Peer] = {
    "torch": _separate("torch", "torch DataLoader, Pillow, workers = cores"),
    "dali": _separate("dali", "NVIDIA DALI on the CPU, threads = cores"),
    "grain": _separate("grain", "Grain over ArrayRecord, Pillow, workers = cores"),
    "webdataset": _separate("webdataset", "WebDataset, Pillow, workers = cores"),
    "litdata": Peer(
        module="benchmarks.input_peers.peer_litdata",
        base_is="LitData, Pillow, workers = cores",
        requirements=INGEST_PEERS["litdata"].requirements,
    ),
    "ffcv": _separate("ffcv", "FFCV, JPEG quality 90 of its own, threads = cores"),
    "tfds": _TFDS(kind="plain", base_is="TFDS, whole decode, AUTOTUNE"),
    "tfds-skip": _TFDS(kind="skip", base_is="TFDS, SkipDecoding and decode_and_crop_jpeg, AUTOTUNE"),
}
FEEDLINE = "benchmarks.input_peers.peer_feedline"
ONLY_PHOTOS = ("tfds-skip",)  # only JPEG supports partial decoding
NO_WHEEL = ("ffcv",)  # needs a compiler, OpenCV and TurboJPEG; this module only installs wheels
