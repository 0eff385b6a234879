"""Servers that misbehave: by fault, pages that each hold an image somehow, and what must become of it."""

from __future__ import annotations

import email.utils
import gzip
import itertools
import random
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.beam_jobs.web_server import Asked, Handler, Page, body, dripping, endless, raw, reset, status

IMAGE = frozenset({"image"})  # it is fetched, and it is the right one
NOT_FETCHED = frozenset({"not_fetched"})
REFUSED = frozenset({"address_refused"})
TOO_MANY_BYTES = frozenset({"too_many_bytes"})
NO_IMAGE = frozenset({"not_an_image", "bad_header", "undecodable", "empty_file"})
ANYTHING = IMAGE | NOT_FETCHED | REFUSED | NO_IMAGE
OUR_WAIT_S = 0.5  # before the second attempt, where the server names no wait that makes sense

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True, kw_only=True)
class Trap:
    """A page.

    Attributes:
      fault: what is wrong with it, a key of `test_network.OUTCOMES`.
      name: of the try.
      page: serves it.
      expected: `image`, or the reasons that it may be rejected for.
      wait_s: seconds between two requests for it, the least of them; None where that is not looked at.
    """

    fault: str
    name: str
    page: Page
    expected: frozenset[str]
    wait_s: float | None = None

    def is_waited_for(self, requests: int, slack_s: float) -> bool:
        """Returns whether it was asked for so often, after the wait that it wished for or a little later."""
        if self.wait_s is None:
            return True
        assert isinstance(self.page, Asked)
        waits = [after - before for before, after in itertools.pairwise(self.page.at)]
        return len(waits) == requests - 1 and all(self.wait_s <= wait <= self.wait_s + slack_s for wait in waits)


def traps(image: bytes, patient: bool) -> Iterator[Trap]:
    """Yields the pages.

    Args:
      image: a JPEG file, to be served.
      patient: whether there may be one that takes a minute.
    """
    for make in (_silent, _dripping, _broken, _lengths, _endless, _onward, _encoded, _headers):
        for name, page, expected in make(image):
            yield Trap(fault=make.__name__[1:], name=name, page=page, expected=expected)
    yield from _busy(image, patient)


def garbled(image: bytes, count: int) -> Iterator[Trap]:
    """Yields answers with some bytes changed, left out or put in, most of them before the body."""
    rng = random.Random(7)
    head = _OK + b"Content-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n" % len(image)
    chunks = _CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(image), image)
    onward = b"HTTP/1.1 302 Found\r\nLocation: /0/plain image\r\nContent-Length: 0\r\n\r\n"
    for number in range(count):
        answer = bytearray((head + image, chunks, onward)[number % 3])
        for _ in range(rng.randint(1, 5)):
            _garble(answer, rng)
        yield Trap(fault="garbled", name=f"garbled {number}", page=raw(bytes(answer)), expected=ANYTHING)


def _garble(answer: bytearray, rng: random.Random) -> None:
    place = rng.randrange(min(90, len(answer)))
    kind = rng.randrange(3)
    if kind == 0:
        answer[place] = rng.randrange(256)
    elif kind == 1:
        del answer[place : place + rng.randint(1, 8)]
    else:
        answer[place:place] = bytes(rng.choice(b"0123456789\r\n:;, -+\xff\x00\x1b") for _ in range(rng.randint(1, 8)))


def _sized(image: bytes, length: object) -> bytes:
    return _OK + f"Content-Length: {length}\r\n\r\n".encode() + image


def _silent(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    yield "silent at once", _pausing(b"", b""), NOT_FETCHED
    yield "silent in the headers", _pausing(_OK, b"\r\n" + image), NOT_FETCHED
    yield "silent in the body", _pausing(_sized(image[:99], len(image)), image[99:]), NOT_FETCHED
    yield "silent once", Asked(_pausing(b"", b""), body(image)), IMAGE


def _dripping(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    yield "drips headers", dripping(_OK + b"X: ", b"x"), NOT_FETCHED
    yield "drips a body", dripping(_OK + b"Content-Length: 100000\r\n\r\n", b"x"), NOT_FETCHED
    yield "drips chunks", dripping(_CHUNKED, b"1\r\nx\r\n"), NOT_FETCHED
    yield "drips 100 Continue", dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), NOT_FETCHED
    yield "drips once", Asked(dripping(_OK + b"X: ", b"x"), body(image)), IMAGE


def _broken(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    yield "reset at once", reset(), NOT_FETCHED
    yield "reset in the body", reset(_sized(image[:99], len(image))), NOT_FETCHED
    yield "reset once", Asked(reset(), body(image)), IMAGE
    yield "hangs up at once", raw(b""), NOT_FETCHED
    yield "hangs up in the headers", raw(_OK + b"Content-Le"), NOT_FETCHED | NO_IMAGE
    yield "hangs up in the body", raw(_sized(image[:99], len(image))), NOT_FETCHED
    yield "hangs up in a chunk", raw(_CHUNKED + b"%x\r\n" % len(image) + image[:99]), NOT_FETCHED
    yield "hangs up between chunks", raw(_CHUNKED + b"%x\r\n" % len(image) + image + b"\r\n"), NOT_FETCHED
    yield "chunks without a size", raw(_CHUNKED + b"zz\r\n" + image), NOT_FETCHED
    yield "a chunk below zero", raw(_CHUNKED + b"-1\r\n" + image), NOT_FETCHED | NO_IMAGE
    yield "a chunk of an exabyte", raw(_CHUNKED + b"f" * 16 + b"\r\n" + image), NOT_FETCHED
    yield "another protocol", raw(b"SSH-2.0-server\r\n\r\n"), NOT_FETCHED
    yield "plain image", body(image), IMAGE


def _busy(image: bytes, patient: bool) -> Iterator[Trap]:
    wishes = {"3 seconds": (_wish("3"), 3.0), "no time": (_wish("0"), 0.0), "4 seconds as a date": (_date(4), 3.0)}
    wishes["a date gone by"] = (_wish("Wed, 21 Oct 2015 07:28:00 GMT"), 0.0)
    for name in ("soon", "1.5", "inf", "-1", "-86400", "Wed, 21 Oct 99999999 07:28:00 GMT", "9" * 5000, ""):
        wishes[repr(name[:40])] = (_wish(name), OUR_WAIT_S)
    if patient:
        wishes |= {"a day": (_wish("86400"), 60.0), "a day as a date": (_date(86400), 60.0)}
    for code in (429, 503):
        for name, (make, wait_s) in wishes.items():
            page = Asked(make(code), body(image))
            yield Trap(fault="busy", name=f"{code} once, wish is {name}", page=page, expected=IMAGE, wait_s=wait_s)
        page = Asked(status(code, Retry_After="1"))
        yield Trap(fault="busy", name=f"{code} for ever", page=page, expected=NOT_FETCHED, wait_s=1.0)


def _wish(text: str) -> Callable[[int], Page]:
    return lambda code: status(code, Retry_After=text)


def _date(ahead_s: float) -> Callable[[int], Page]:
    """Wishes for a moment so far ahead of the answer, less the part of a second that a date cannot say."""
    return lambda code: (
        lambda handler: handler.answer(code, Retry_After=email.utils.formatdate(time.time() + ahead_s, usegmt=True))
    )


def _lengths(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    half = len(image) // 2
    another = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"
    yield "longer than the body", raw(_sized(image, len(image) + 1)), NOT_FETCHED
    yield "a petabyte", raw(_sized(image, 10**15)), NOT_FETCHED
    yield "shorter than the body", lambda handler: handler.raw(_sized(image, half)), NO_IMAGE
    yield "another answer behind the body", lambda handler: handler.raw(_sized(image + another, len(image))), IMAGE
    yield "two that differ", raw(_sized(image, f"{len(image)}, {half}")), NOT_FETCHED
    yield "below zero", raw(_sized(image, -1)), IMAGE
    yield "no number", raw(_sized(image, "many")), IMAGE
    yield "5,000 digits", raw(_sized(image, "9" * 5000)), IMAGE
    yield "none at all", raw(_OK + b"\r\n" + image), IMAGE
    yield "none, and chunks", raw(_CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(image), image)), IMAGE
    yield "zero", status(200), NO_IMAGE
    yield "no content", raw(b"HTTP/1.1 204 No Content\r\n\r\n"), NO_IMAGE


def _endless(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    yield "of zeros", endless(_OK + b"\r\n", b"\0" * 50_000), TOO_MANY_BYTES
    yield "behind an image", endless(_OK + b"\r\n" + image, b"\0" * 50_000), TOO_MANY_BYTES
    yield "in chunks", endless(_CHUNKED, b"c350\r\n" + b"\0" * 50_000 + b"\r\n"), TOO_MANY_BYTES
    yield "of an error", endless(b"HTTP/1.1 404 Not Found\r\n\r\n", b"x" * 50_000), NOT_FETCHED
    yield "of a redirect", endless(b"HTTP/1.1 302 Found\r\nLocation: /0/plain image\r\n\r\n", b"x" * 50_000), IMAGE


def _onward(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    schemes = ("file:///etc/passwd", "FILE:/etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/_x", "data:,x")
    for where in (*schemes, "javascript:alert(1)", "unix:/run/x.sock", "s3://bucket/x.jpg", "gs://bucket/x.jpg"):
        yield f"to {where}", status(302, Location=where), REFUSED
    for where in ("http://[::1", "http://x:99999/", "http://", "//", "http://a\x7fb/", "http://127.0.0.1:1/"):
        yield f"to {where!r}", status(302, Location=where), NOT_FETCHED | REFUSED
    yield "to itself", lambda handler: handler.answer(302, Location=handler.path), REFUSED
    yield "from host to host", _to_and_fro, REFUSED
    yield "nowhere", status(302), NOT_FETCHED
    yield "to an image", status(307, Location="/0/plain%20image"), IMAGE


def _encoded(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    bomb = gzip.compress(bytes(100_000_000), 9)
    for kind in ("gzip", "gzip, gzip", "br", "deflate", "zstd", "x\x7f"):
        yield f"a bomb of {kind!r}", _encoding(bomb, kind), NO_IMAGE
    yield "an image in gzip", _encoding(gzip.compress(image), "gzip"), NO_IMAGE
    yield "an image in deflate", _encoding(zlib.compress(image), "deflate"), NO_IMAGE
    yield "no gzip at all", _encoding(image, "gzip"), IMAGE


def _headers(image: bytes) -> Iterator[tuple[str, Page, frozenset[str]]]:
    tail = b"Content-Length: %d\r\n\r\n" % len(image) + image
    yield "99 lines", raw(_OK + b"A: b\r\n" * 98 + tail), IMAGE
    yield "200 lines", raw(_OK + b"A: b\r\n" * 200 + tail), NOT_FETCHED
    yield "60 kB in a line", raw(_OK + b"A: " + b"b" * 60_000 + b"\r\n" + tail), IMAGE
    yield "70 kB in a line", raw(_OK + b"A: " + b"b" * 70_000 + b"\r\n" + tail), NOT_FETCHED
    yield "endless lines", endless(_OK, b"A: b\r\n" * 1000), NOT_FETCHED
    yield "an endless line", endless(_OK + b"A: ", b"b" * 50_000), NOT_FETCHED
    yield "an endless trailer", endless(_CHUNKED + b"0\r\n", b"A: b\r\n" * 1000), NO_IMAGE | NOT_FETCHED
    yield "an endless status", endless(b"HTTP/1.1 200 ", b"x" * 50_000), NOT_FETCHED
    yield "controls", raw(b"HTTP/1.1 403 \x1b]0;x\x07\r\nX: \x1b[2J\r\nServer: \x9b\r\n\r\n"), NOT_FETCHED
    yield "a status of controls", raw(b"\x1b[31m\x07\r\n\r\n"), NOT_FETCHED
    yield "a place of controls", status(302, Location="\x1b[2Jx://\x07/\x9b"), NOT_FETCHED | REFUSED


def _encoding(data: bytes, kind: str) -> Page:
    return lambda handler: handler.answer(200, data, Content_Encoding=kind)


def _to_and_fro(handler: Handler) -> None:
    host, _, port = handler.headers["Host"].partition(":")
    other = "127.0.0.1" if host == "localhost" else "localhost"
    handler.answer(302, Location=f"http://{other}:{port}{handler.path}")


def _pausing(before: bytes, after: bytes) -> Page:
    """Says nothing for long between two parts of an answer."""

    def page(handler: Handler) -> None:
        handler.raw(before)
        time.sleep(8.0)
        handler.raw(after)
        handler.close_connection = True

    return page
