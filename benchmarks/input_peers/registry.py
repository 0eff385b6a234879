"""Which peers there are and where each runs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.registry import Peer

_REQUIREMENTS = Path(__file__).parent / "requirements"


def _own(name: str, base_is: str) -> Peer:
    """Returns a peer with an environment of its own."""
    return Peer(
        module=f"benchmarks.input_peers.peer_{name}", base_is=base_is, requirements=_REQUIREMENTS / f"{name}.txt"
    )


PEERS: dict[str, Peer] = {
    "torch": _own("torch", "torch DataLoader, Pillow, workers = cores"),
    "dali": _own("dali", "NVIDIA DALI on the CPU, threads = cores"),
    "grain": _own("grain", "Grain over ArrayRecord, Pillow, workers = cores"),
    "webdataset": _own("webdataset", "WebDataset, Pillow, workers = cores"),
    "ffcv": _own("ffcv", "FFCV, JPEG quality 90 of its own, threads = cores"),
    "tfds": Peer(
        module="benchmarks.input_peers.peer_tfds",
        base_is="TFDS, whole decode, AUTOTUNE",
        kind="plain",
        distribution="tensorflow-datasets",
    ),
    "tfds-skip": Peer(
        module="benchmarks.input_peers.peer_tfds",
        base_is="TFDS, SkipDecoding and decode_and_crop_jpeg, AUTOTUNE",
        kind="skip",
        distribution="tensorflow-datasets",
    ),
}
FEEDLINE = "benchmarks.input_peers.peer_feedline"
ONLY_PHOTOS = ("tfds-skip",)  # nothing but a JPEG can be decoded in part
NO_WHEEL = ("ffcv",)  # compiled against OpenCV and TurboJPEG, and nothing is compiled here
