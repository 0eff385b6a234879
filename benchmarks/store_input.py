"""Compares training input from Google Storage and local files: `python -m benchmarks.store_input [--delay-ms MS]`.

A local server implements the JSON API of Google Storage; each response has a delay. For each order, prints images/s
from both, as medians of three alternating rounds, their ratio, and the bytes and requests of one epoch.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from benchmarks.sources import write_photographs

_BUCKET = "bucket"
_SIDE_PX, _BATCH, _SHARDS = 224, 32, 4
_ROUNDS = 3
_EPOCHS = 10  # measured in a round, after the first batch


def main() -> None:
    """Creates a dataset, and reads it alternately from the disk and from the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2000, help="photographs of 500x375 pixels")
    parser.add_argument("--delay-ms", type=float, default=100)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Path(arguments.serve), arguments.delay_ms / 1000)
    elif arguments.read:
        print(json.dumps(read(*arguments.read)))
    else:
        compare(arguments.images, arguments.delay_ms)


def compare(images: int, delay_ms: float) -> None:
    """Prints a line of results for each order."""
    from beam_jobs import ingest
    from beam_jobs.options import IngestOptions

    with tempfile.TemporaryDirectory() as scratch:
        photographs, out = Path(scratch, "photographs"), Path(scratch, _BUCKET, "dataset")
        write_photographs(photographs, images)
        options = IngestOptions(source=str(photographs), out=str(out), splits={"train": 1}, shards=_SHARDS)
        record_bytes = ingest.run(options).split("train").bytes
        with _server(str(out.parent), delay_ms) as url:
            for shuffle in ("window", "none"):
                rates: dict[str, list[float]] = {"local": [], "store": []}
                for _ in range(_ROUNDS):
                    rates["local"].append(_run_reader(str(out), shuffle, url)["images_per_s"])
                    before = _counts(url)
                    store = _run_reader(f"gs://{_BUCKET}/dataset", shuffle, url)
                    rates["store"].append(store["images_per_s"])
                    used = {name: count - before[name] for name, count in _counts(url).items()}
                local, remote = (statistics.median(values) for values in rates.values())
                epochs = store["epochs"]
                print(
                    f"{shuffle:<8} {local:7,.0f} images/s local, {remote:7,.0f} from the store, ratio "
                    f"{remote / local:.2f}; an epoch: {used['bytes'] / epochs / record_bytes:.2f} of the bytes of its "
                    f"records, {used['bytes'] / used['requests'] / 1e6:.1f} MB per request",
                    flush=True,
                )


def read(path: str, shuffle: str) -> dict[str, float]:
    """Reads some epochs, and returns the images/s after the first batch and the number of epochs."""
    from trainer import InputOptions, make_dataset

    options = InputOptions(image_side_px=_SIDE_PX, batch_size=_BATCH, shuffle=shuffle, cache="none")
    batches = iter(make_dataset(path, "train", options, training=True, epochs=_EPOCHS))
    next(batches)
    start, images = time.perf_counter(), sum(len(label) for _, label in batches)
    return {"images_per_s": images / (time.perf_counter() - start), "epochs": _EPOCHS}


def _run_reader(path: str, shuffle: str, url: str) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.store_input", "--read", path, shuffle]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "STORAGE_EMULATOR_HOST": url}
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


@contextlib.contextmanager
def _server(root: str, delay_ms: float) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.store_input", "--serve", root, "--delay-ms", str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield (server.stdout.readline() if server.stdout else "").strip()
        finally:
            server.terminate()


def _counts(url: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{url}/counts") as answer:  # noqa: S310 - on loopback
        return json.load(answer)


def serve(root: Path, delay_s: float) -> None:
    """Serves the files below a directory as objects until the process is ended; first prints the URL."""
    counts, lock = {"requests": 0, "bytes": 0}, threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            address, _, query = self.path.partition("?")
            if address == "/counts":
                self._send(200, json.dumps(counts).encode())
                return
            time.sleep(delay_s)
            with lock:
                counts["requests"] += 1
            bucket, _, name = unquote(address).partition("/b/")[2].partition("/o/")
            path = root / name if bucket == root.name else Path(os.devnull)
            if "alt=media" not in query:
                self._send(200, json.dumps(_metadata(name, path.read_bytes())).encode())
                return
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            with path.open("rb") as file:  # reads only the requested range: the client runs on the same cores
                file.seek(int(first))
                part = file.read(int(last) + 1 - int(first) if last else -1)
            with lock:
                counts["bytes"] += len(part)
            self._send(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{path.stat().st_size}")

        def _send(self, status: int, body: bytes, content_range: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if content_range:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


def _metadata(name: str, data: bytes) -> dict[str, str]:
    import google_crc32c

    crc32c = base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    return {"name": name, "size": str(len(data)), "updated": "2026-01-01T00:00:00Z", "crc32c": crc32c}


if __name__ == "__main__":
    main()
