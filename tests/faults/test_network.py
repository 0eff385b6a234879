"""Images on servers that are slow, broken, busy or hostile: each is fetched or a named reject, and the job ends."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from tests import image_table
from tests.beam_jobs.make_certificates import certificate, speaker
from tests.beam_jobs.web_server import Asked, WebServer, body, serving, status
from tests.faults import process
from tests.faults.matrix import Row
from tests.faults.web_pages import IMAGE, NOT_FETCHED, REFUSED, Trap, garbled, traps
from tests.make_images import jpeg

pytestmark = pytest.mark.timeout(900)

OUTCOMES = {
    "silent": ("servers that do not respond to a connection or a request", "retried, then rejected"),
    "dripping": ("responses that arrive one byte at a time", "stopped at a deadline, retried, then rejected"),
    "broken": ("connections reset or cut, protocols broken", "retried, then rejected"),
    "busy": ("429 and 503, Retry-After in seconds, as a date, negative or invalid", "retried then, a minute at most"),
    "lengths": ("wrong Content-Length, longer or shorter", "the image or a reject; other images are unaffected"),
    "endless": ("endless bodies", "stopped at `--max-bytes` and rejected"),
    "onward": ("redirects in circles and to other schemes", "refused after five redirects, other schemes immediately"),
    "encoded": ("compressed bodies and compression bombs by Content-Encoding", "rejected without decompression"),
    "headers": ("huge, endless and unprintable headers", "rejected in one printable line"),
    "garbled": ("responses with random bytes", "the image or a reject with the reason"),
    "certificates": ("certificates self-signed, of another host or expired", "rejected before a request is sent"),
}
_TIMEOUT_S = 1.0
_ATTEMPTS = 2
_SLACK_S = 5.0  # for a busy machine
# Each time a handshake or two, an answer that takes as long as it may, and a last silence.
_LONGEST_S = _ATTEMPTS * (2 + 10 + 1) * _TIMEOUT_S + _SLACK_S
_PICTURE = jpeg(1)
Names = dict[str, list[list[str]]]


@dataclass(frozen=True)
class Job:
    """An ingest of URLs.

    Attributes:
      outcome: how it ended.
      images: key -> sha256 of every image.
      rejects: key -> reason and detail of every reject.
      seconds: key -> how long it was fetched, retries and waits included.
      asked: hosts and ports to which anything was sent.
    """

    outcome: process.Outcome
    images: dict[str, str] = field(default_factory=dict)
    rejects: dict[str, tuple[str, str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    asked: set[tuple[str, int]] = field(default_factory=set)

    def judge(
        self,
        row: Row,
        key: str,
        expected: frozenset[str],
        *,
        image: bytes = _PICTURE,
        wait_s: float = 0.0,
        waited: bool = True,
    ) -> None:
        """Counts a try: what became of a URL.

        Args:
          row: counts it.
          key: of the image.
          expected: see `Trap`.
          image: what must have been fetched.
          wait_s: seconds that it may take longer than others, because the server asked for it.
          waited: whether the wait was what it had to be.
        """
        found = self.images.get(key)
        reason, detail = self.rejects.get(key, ("", ""))
        lost = self.outcome.code != 0 or not (found or reason)
        right = reason in expected if reason else "image" in expected
        if found and expected == IMAGE:
            right = found == hashlib.sha256(image).hexdigest()
        row.tried(
            f"{key}: {detail or found or self.outcome.err.strip().splitlines()[-1:]}, {self.seconds.get(key)} s",
            hang=self.outcome.hang or self.seconds.get(key, 0.0) > _LONGEST_S + wait_s,
            lost=lost,
            wrong=not lost and not (right and waited and detail.isprintable() and key in self.seconds),
        )


def ingest(home: Path, urls: dict[str, str], names: Names | None = None, *, limit_s=420.0, env=None, **options) -> Job:
    """Runs the command line on a table of URLs; `names` are those of `web_child`."""
    with open(home / "urls.csv", "w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        table.writerow(["key", "image", "label"])
        table.writerows((key, url, "x") for key, url in urls.items())
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value) if part != ""]
    limits = ["--max-reject-ratio", 1, "--splits", "train=1", "--key-column", "key", "--http-timeout-s", _TIMEOUT_S]
    record = home / "record.jsonl"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-W", "ignore", "-m", "tests.faults.web_child", json.dumps(names or {}), record]
    command += ["ingest", home / "urls.csv", "--out", home / "out", *limits, *flags]
    outcome = process.run(command, limit_s, env=env)
    noted = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
    seconds = {url: seconds for kind, url, seconds in noted if kind == "fetched"}
    return Job(
        outcome,
        *_read(home / "out"),
        {key: seconds[url] for key, url in urls.items() if url in seconds},
        {(host, port) for kind, host, port in noted if kind == "asked"},
    )


def _read(out: Path) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    if not (out / "dataset.json").exists():
        return {}, {}
    images = image_table.read(out).to_pylist()
    rejects = pq.read_table(out / "rejects.parquet", use_threads=False).to_pylist()
    return (
        {row["key"]: row["source_sha256"] for row in images},
        {row["key"]: (row["reason"], row["detail"]) for row in rejects},
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory, tries, short) -> tuple[list[Trap], Job]:
    """All the pages and what became of them, in one ingest."""
    home = tmp_path_factory.mktemp("hostile")
    with contextlib.ExitStack() as running:
        found = [
            dataclasses.replace(trap, name=f"{copy}/{trap.name}")
            for copy in range(tries(3, 1))
            for trap in traps(_PICTURE, patient=copy == 0 and not short)
        ]
        found += [dataclasses.replace(trap, name=f"0/{trap.name}") for trap in garbled(_PICTURE, tries(400, 40))]
        others = [*_unreachable(running), *_uncertified(running, home)]
        urls = _served(running, found)
        urls |= {f"{trap.fault} {trap.name}": url for trap, url in others}
        environment = {"SSL_CERT_FILE": str(home / "trusted.pem")}
        options = {"http_retries": _ATTEMPTS - 1, "http_per_host": 64, "http_allow_private": "", "max_bytes": 200_000}
        job = ingest(home, urls, env=environment, **options)
    return [*found, *(trap for trap, _ in others)], job


def _served(running: contextlib.ExitStack, found: list[Trap]) -> dict[str, str]:
    """Serves the pages, and returns the URL of each.

    Those that behave otherwise the second time have a server of their own: on a connection that is kept, the next one
    who asks may find that the page before hung up, and that would be one of the attempts that are counted here.
    """
    urls = {}
    for changing in (False, True):
        some = [trap for trap in found if isinstance(trap.page, Asked) is changing]
        server = running.enter_context(serving({f"/{quote(trap.name)}": trap.page for trap in some}))
        urls |= {f"{trap.fault} {trap.name}": server.url(f"/{quote(trap.name)}") for trap in some}
    return urls


def _other(fault: str, name: str, expected: frozenset[str] = NOT_FETCHED) -> Trap:
    return Trap(fault=fault, name=name, page=status(404), expected=expected)


def _unreachable(running: contextlib.ExitStack) -> Iterator[tuple[Trap, str]]:
    """Yields hosts that do not answer, not even to a handshake, or do not exist."""
    deaf = running.enter_context(socket.socket())
    deaf.bind(("127.0.0.1", 0))
    deaf.listen(0)
    for _ in range(4):  # its queue is full then: a further handshake gets no answer
        waiting = running.enter_context(socket.socket())
        waiting.setblocking(False)
        waiting.connect_ex(deaf.getsockname())
    mute = running.enter_context(socket.create_server(("127.0.0.1", 0)))
    closed = running.enter_context(socket.socket())
    closed.bind(("127.0.0.1", 0))
    yield _other("silent", "no answer to a handshake"), f"http://127.0.0.1:{deaf.getsockname()[1]}/x"
    yield _other("silent", "no answer to a handshake of TLS"), f"https://127.0.0.1:{mute.getsockname()[1]}/x"
    yield _other("broken", "nobody listens"), f"http://127.0.0.1:{closed.getsockname()[1]}/x"
    yield _other("broken", "no such host"), "http://nowhere.invalid/x"


def _uncertified(running: contextlib.ExitStack, home: Path) -> Iterator[tuple[Trap, str]]:
    """Yields what lies behind certificates that must not be believed, and what lies behind one that must."""
    trusted = {
        "sound": (certificate(home, "localhost"), IMAGE),
        "expired": (certificate(home, "localhost", (-3, -2)), NOT_FETCHED),
        "not yet valid": (certificate(home, "localhost", (2, 3)), NOT_FETCHED),
        "of another host": (certificate(home, "other.example"), NOT_FETCHED),
    }
    (home / "trusted.pem").write_bytes(b"".join(path.read_bytes() for path, _ in trusted.values()))
    (home / "own").mkdir()
    certified = {**trusted, "self-signed": (certificate(home / "own", "localhost"), NOT_FETCHED)}
    for name, (path, expected) in certified.items():
        server = running.enter_context(serving({"/a.jpg": body(_PICTURE)}, speaker(path)))
        yield _other("certificates", name, expected), f"https://localhost:{server.server_port}/a.jpg"
    plain = running.enter_context(serving({"/a.jpg": body(_PICTURE)}))
    yield _other("certificates", "none at all"), f"https://localhost:{plain.server_port}/a.jpg"


@pytest.mark.parametrize("kind", OUTCOMES)
def test_every_image_is_fetched_or_rejected_by_name(hostile, fault, kind):
    found, job = hostile
    row = fault("network", *OUTCOMES[kind])
    for trap in found:
        if trap.fault == kind:
            waited = trap.is_waited_for(_ATTEMPTS, _SLACK_S)
            job.judge(row, f"{kind} {trap.name}", trap.expected, wait_s=trap.wait_s or 0.0, waited=waited)
    assert not job.outcome.shows_traceback
    assert all(line.isprintable() for line in job.outcome.err.splitlines())


_SPELLINGS = (
    *("127.0.0.2", "2130706434", "0x7f000002", "0177.0.0.2", "017700000002", "127.2", "0x7f.2", "127.0.2"),
    *("[::ffff:127.0.0.2]", "[::ffff:7f00:2]", "[0:0:0:0:0:ffff:7f00:0002]", "[::127.0.0.2]", "[64:ff9b::7f00:2]"),
    *("[2002:7f00:2::]", "[::1]", "[::]", "[fe80::1]", "[fd00:ec2::254]", "[ff02::1]", "0", "0.0.0.0", "127.1.2.3"),
    *("10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "2852039166", "192.0.0.192"),
    *("168.63.129.16", "224.0.0.1", "255.255.255.255", "private.example", "metadata.example", "linklocal6.example"),
    *("127。0。0。2", "①②⑦.0.0.2", "user@127.0.0.2", "127.0.0.1:80@127.0.0.2"),
)
_NO_HOSTS = frozenset({"127。0。0。2", "①②⑦.0.0.2"})  # letters that are no digits; browsers take them for some
_NAMES = {
    "public.example": [["127.0.0.1"]],
    "private.example": [["127.0.0.2"]],
    "metadata.example": [["169.254.169.254"]],
    "linklocal6.example": [["fe80::1"]],
    "both.example": [["127.0.0.2", "127.0.0.1"]],
    "rebinding.example": [["127.0.0.1"], ["127.0.0.2"]],
}


@contextlib.contextmanager
def _pair() -> Iterator[tuple[WebServer, WebServer]]:
    """Runs a server on 127.0.0.1, which is taken for the open internet, and one on 127.0.0.2 under the same port."""
    pages = {"/a.jpg": body(_PICTURE)}
    with (
        serving(pages, address=("127.0.0.2", 0)) as secret,
        serving(pages, address=("127.0.0.1", secret.server_port)) as public,
    ):
        yield public, secret


def test_addresses_that_are_not_public_are_never_asked(tmp_path, fault):
    direct = fault("network", "private addresses in every notation, or behind a name", "refused, not requested")
    onward = fault("network", "redirects from public to private addresses", "refused, not requested")
    with _pair() as (public, secret):
        port = secret.server_port
        hosts = {f"{scheme} {host}": host for scheme in ("http", "https") for host in _SPELLINGS}
        urls = {}
        for number, (name, host) in enumerate(hosts.items()):
            url = f"{name.partition(' ')[0]}://{host}:{port}/a.jpg"
            # A header holds Latin-1: browsers and servers send other letters percent-encoded.
            public.pages[f"/{number}"] = status(302 + number % 2, Location=quote(url, safe=":/@[]"))
            urls |= {f"direct {name}": url, f"onward {name}": public.url(f"/{number}")}
        public.pages["/chain"] = status(307, Location=f"http://rebinding.example:{port}/b.jpg")
        public.pages["/b.jpg"] = status(308, Location=f"http://rebinding.example:{port}/a.jpg")
        sound = {host: f"http://{host}:{port}/a.jpg" for host in ("127.0.0.1", "public.example", "both.example")}
        job = ingest(tmp_path, {**urls, **sound, "chain": public.url("/chain")}, _NAMES, http_retries=0)
    for way, row in (("direct", direct), ("onward", onward)):
        for name, host in hosts.items():
            job.judge(row, f"{way} {name}", NOT_FETCHED if host in _NO_HOSTS else REFUSED)
        # By Python's own account, so also where nobody listens or no route leads.
        row.tried(f"asked: {job.asked}", wrong=job.asked != {("127.0.0.1", port)})
        row.tried(f"the secret server was asked: {secret.seen}", wrong=bool(secret.seen))
    job.judge(onward, "chain", REFUSED | IMAGE)  # its connection is kept: the name is not asked for again
    for key in sound:
        job.judge(direct, key, IMAGE)


def test_what_was_not_fetched_is_added_once_the_server_is_well(tmp_path, fault, tries):
    row = fault("network", "a server that is down for some time", "rejects; `--retry-rejects` adds them")
    pictures = {f"{number}": jpeg(number) for number in range(tries(40, 8))}
    with serving({}) as server:
        urls = {key: server.url(f"/{key}") for key in pictures}
        options = {"http_retries": 0, "http_allow_private": ""}
        pages = {f"/{key}": body(picture) for key, picture in pictures.items()}
        server.pages |= dict(list(pages.items())[::4])
        before = ingest(tmp_path, urls, **options)
        assert len(before.images) == len(pages) // 4
        server.pages |= pages
        after = ingest(tmp_path, urls, **options, retry_rejects="")
    after = dataclasses.replace(after, seconds=before.seconds | after.seconds)
    for key, picture in pictures.items():
        after.judge(row, key, IMAGE, image=picture)
        assert key in before.images or before.rejects[key][0] == "not_fetched"
