from __future__ import annotations

import socket

import pytest

from beam_jobs.errors import BadImage
from beam_jobs.options import HttpOptions
from beam_jobs.rejects import RejectReason
from beam_jobs.sources import http_client, http_fetch
from tests.beam_jobs.web_server import DATA, body, failure, fetch, status


@pytest.mark.parametrize("code", [301, 308])
def test_redirects_are_followed(server, code):
    server.pages |= {"/1": status(code, Location="2?x=1"), "/2?x=1": status(code, Location=server.url("/a.jpg"))}
    assert fetch(server, "/1") == DATA


def test_five_redirects_are_followed_and_no_sixth(server):
    server.pages |= {f"/{n}": status(302, Location=f"/{n + 1}") for n in range(6)} | {"/6": body(b"image")}
    assert fetch(server, "/1") == b"image"
    assert failure(server, "/0", retries=3) == (RejectReason.ADDRESS_REFUSED, "over 5 redirects")


@pytest.mark.parametrize(
    ("header", "directive"),
    [
        ("noai", "noai"),
        ("NoIndex, nofollow", "noindex"),
        ("noarchive, max-snippet: 0, noimageai", "noimageai"),
        ("max-image-preview: none, noimageindex", "noimageindex"),
        ("feedline: none", "none"),
        ("*: noai", "noai"),
        ("otherbot: noindex, feedline: noai", "noai"),
        ("otherbot: noindex, noimageindex", ""),
        ("unavailable_after: 25 Jun 2030 15:00:00 PST", ""),
        ("nofollow", ""),
    ],
)
def test_an_image_that_its_server_keeps_out_of_datasets_is_refused(server, header, directive):
    server.pages["/x"] = lambda page: page.answer(200, DATA, X_Robots_Tag=header)
    if directive:
        detail = f"the server sends X-Robots-Tag: {directive}; see --ignore-robots-tag"
        assert failure(server, "/x", retries=3) == (RejectReason.OPTED_OUT, detail)
        assert server.seen["/x"] == 1
    assert fetch(server, "/x", ignore_robots_tag=bool(directive)) == DATA


@pytest.mark.parametrize("where", ["file:///etc/passwd", "data:,x"])
def test_a_redirect_to_another_scheme_is_refused(server, where):
    server.pages["/x"] = status(302, Location=where)
    reason, detail = failure(server, "/x")
    assert reason == RejectReason.ADDRESS_REFUSED
    assert detail.endswith("is not allowed; only http:// and https:// are fetched")


@pytest.mark.parametrize("where", [{}, {"Location": "http://[::1"}, {"Location": "http://x:99999/"}], ids=str)
def test_a_redirect_to_nowhere_is_a_failure(server, where):
    server.pages["/x"] = status(302, **where)
    reason, detail = failure(server, "/x")
    assert reason == RejectReason.NOT_FETCHED
    assert where or detail == "HOST returned HTTP 302; 1 attempt"


@pytest.mark.parametrize(
    "host", ["localhost", "[::1]", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "169.254.169.254"]
)
def test_addresses_that_are_not_public_are_refused_unasked(server, host):
    with pytest.raises(BadImage, match="^address_refused: .* is at .*, which is not public$"):
        http_fetch.fetch(f"http://{host}:{server.server_port}/a.jpg", HttpOptions(timeout_s=0.2, retries=3), 1)
    assert not server.seen


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::5db8:d822", True),
        ("10.0.0.1", False),
        ("224.0.0.1", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("fec0::1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("192.0.0.192", False),
        ("168.63.129.16", False),
        ("192.88.99.1", False),
        ("2001:0:5ef5:79fb::1", False),
        ("3fff::1", False),
        ("5f00::1", False),
    ],
)
def test_addresses_are_told_apart(address, public):
    assert http_client.is_public(address) is public


@pytest.fixture
def open_internet(monkeypatch):
    """Makes 127.0.0.1, and no other address of this machine, one of the open internet."""
    is_public = http_client.is_public
    monkeypatch.setattr(http_client, "is_public", lambda address: address == "127.0.0.1" or is_public(address))


@pytest.mark.usefixtures("open_internet")
def test_a_redirect_from_a_public_to_a_private_address_is_refused(server):
    server.pages |= {"/x": status(302, Location=f"http://127.0.0.2:{server.server_port}/a.jpg")}
    assert fetch(server, "/a.jpg", allow_private=False) == DATA
    assert failure(server, "/x", allow_private=False) == (
        RejectReason.ADDRESS_REFUSED,
        "127.0.0.2 is at 127.0.0.2, which is not public",
    )
    assert server.seen["/a.jpg"] == 1


@pytest.mark.usefixtures("open_internet")
def test_the_address_that_was_checked_is_the_one_connected_to(server, monkeypatch):
    answers = [["127.0.0.2", "127.0.0.1"], ["127.0.0.2"]]  # a name server that says something else the second time

    def look_up(host, port, **_):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, port)) for found in answers.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    options = HttpOptions(timeout_s=0.2, retries=0)
    assert http_fetch.fetch(f"http://images.example:{server.server_port}/a.jpg", options, 5) == DATA[:5]
    assert server.headers[0]["Host"] == f"images.example:{server.server_port}"
    assert answers == [["127.0.0.2"]]
