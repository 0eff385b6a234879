"""Tests of the processes that fetch: the contents are those of one process, whatever happens to them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import apache_beam as beam
import pytest
from PIL import Image

from beam_jobs import IngestOptions, run
from beam_jobs.common import process_pool
from beam_jobs.common.process_pool import Child, PoolClosed
from beam_jobs.errors import BadImage, FeedlineError
from beam_jobs.images import sandbox
from beam_jobs.options import HttpOptions
from beam_jobs.runners.beam_job import local_pipeline
from beam_jobs.sources import fetchers
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages.examine import examine_bucket
from beam_jobs.types import Annotations
from tests.beam_jobs.buckets import bucket_of_refs, task_of
from tests.beam_jobs.make_rows import make_ref
from tests.beam_jobs.runs import files_under
from tests.beam_jobs.web_server import Asked, Crowd, WebServer, body, serving, status
from tests.engines.flink_processes import wait_until
from tests.make_images import encode, jpeg

CORES = 2
COUNT = 60
HTTP = HttpOptions(timeout_s=5.0, retries=1, per_host=6, allow_private=True)


@pytest.fixture(autouse=True)
def used(monkeypatch) -> Iterator[None]:
    """Processes also for few images; they end with the test."""
    monkeypatch.setattr(fetchers, "MIN_IMAGES", 20)
    yield
    fetchers._own.close()


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


@pytest.fixture
def server(crowd) -> Iterator[WebServer]:
    pages = {f"/{number}": crowd for number in range(COUNT)}
    pages |= {"/3": status(404), "/5": Asked(status(503), crowd), "/8": body(b"not for you")}
    pages["/8"] = lambda handler: handler.answer(200, b"no", X_Robots_Tag="noai")
    with serving(pages) as running:
        yield running


def places_of(server: WebServer) -> list[tuple[str, str]]:
    return [(server.url(f"/{number}"), "") for number in range(COUNT)]


def texts(contents) -> list[str]:
    return [content.detail if isinstance(content, BadImage) else content.decode() for content in contents]


def read(server: WebServer, cores: int = CORES, http: HttpOptions = HTTP) -> list[str]:
    return texts(fetchers.read_all(Reader(base="", max_bytes=1 << 20, http=http), places_of(server), cores))


def answers(monkeypatch, act) -> None:
    """Has a function of the child and the number of its answers called before each of them."""
    answer, numbers = Child.answer, iter(range(COUNT))

    def answers_(child, *rest, **named):
        act(child, next(numbers))
        return answer(child, *rest, **named)

    monkeypatch.setattr(Child, "answer", answers_)


def test_several_processes_return_the_bytes_and_the_errors_of_one_in_order(server):
    several = read(server)
    assert len(fetchers._own.pool._idle) == 2
    assert several == read(server, cores=1)
    assert [several[3], several[5], several[59]] == ["127.0.0.1 returned HTTP 404; 1 attempt", "/5", "/59"]
    assert "X-Robots-Tag: noai" in several[8]


def test_all_processes_together_keep_the_limit_of_requests_to_a_host(server, crowd):
    assert read(server)[59] == "/59"
    assert 2 < crowd.most <= HTTP.per_host


def test_a_host_that_takes_one_request_at_a_time_is_asked_by_one_process(server, crowd):
    http = HttpOptions(timeout_s=5.0, per_host=1, allow_private=True)
    assert read(server, http=http)[59] == "/59"
    assert crowd.most == 1
    assert not fetchers._own.pool._idle


def test_a_process_fetches_while_its_answer_is_waited_for(server):
    contents = fetchers.read_all(Reader(base="", max_bytes=1 << 20, http=HTTP), places_of(server), CORES)
    next(contents)
    wait_until(lambda: sum(server.seen.values()) > 40, 60)  # 64 at a time, over two processes
    contents.close()


def test_what_a_process_that_died_has_not_sent_is_fetched_here(server, monkeypatch):
    expected = read(server, cores=1)
    with monkeypatch.context() as patch:
        answers(patch, lambda child, number: number == 0 and os.kill(child.pid, signal.SIGKILL))
        assert read(server) == expected
    assert read(server) == expected
    assert len(fetchers._own.pool._idle) == 2


def test_a_stop_ends_the_processes_and_nothing_is_fetched_here(server, monkeypatch):
    answers(monkeypatch, lambda _, number: number == 2 and fetchers._own.stop())
    contents = fetchers.read_all(Reader(base="", max_bytes=1 << 20, http=HTTP), places_of(server), CORES)
    with pytest.raises(PoolClosed):
        texts(contents)
    assert not fetchers._own.pool._busy


def test_calls_in_several_threads_wait_for_one_another(server, crowd):
    expected = read(server, cores=1)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(read, [server] * 3)) == [expected] * 3
    assert crowd.most <= HTTP.per_host


def test_processes_that_do_not_start_are_named_and_those_of_the_next_call_do(server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(process_pool, "_MAIN", "raise SystemExit('no %s')")
        with pytest.raises(FeedlineError, match="that fetch images do not start: no beam_jobs.sources.fetchers"):
            read(server)
    assert read(server)[59] == "/59"


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt], ids=["left", "error", "interrupted"])
def test_who_needs_no_more_leaves_the_processes_to_others(server, error):
    contents = fetchers.read_all(Reader(base="", max_bytes=1 << 20, http=HTTP), places_of(server), CORES)
    next(contents)
    if error:
        with pytest.raises(error):
            contents.throw(error())
    contents.close()
    assert not fetchers._own.pool._busy
    assert read(server)[59] == "/59"


def test_an_error_in_a_bucket_leaves_the_processes_to_the_next_one(tmp_path, monkeypatch):
    with serving({f"/{number}.jpg": body(jpeg(number)) for number in range(40)}) as server:
        bucket = bucket_of_refs(tmp_path, *(make_ref(server.url(path)) for path in server.pages))
        task = task_of(tmp_path, threads=CORES)
        with monkeypatch.context() as patch:
            patch.setattr(sandbox, "examine", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError) as kept:
                examine_bucket(bucket, task)
        assert examine_bucket(bucket, task).good == 40
        assert kept.value.__traceback__


def test_few_images_are_fetched_here(server, monkeypatch):
    monkeypatch.setattr(fetchers, "MIN_IMAGES", COUNT + 1)
    assert read(server)[59] == "/59"
    assert not fetchers._own.pool._idle


@pytest.mark.parametrize(("cores", "per_host"), [(5, 8), (16, 8), (64, 40)])
def test_many_processes_keep_no_more_images_and_no_less_requests_than_one(cores, per_host, monkeypatch):
    threads, waiting, most, limits = max(cores, 32), 0, 0, {}

    class Stand:
        def ask(self, header, _):
            nonlocal waiting, most
            waiting += len(header["places"])
            most = max(most, waiting)
            limits[self] = header["reader"]["http"]["per_host"]
            self.sizes = [*getattr(self, "sizes", ()), len(header["places"])]

        def answer(self, *_, **__):
            nonlocal waiting
            waiting -= self.sizes[0]
            return {"answers": [{}] * self.sizes[0]}, [b""] * self.sizes.pop(0)

    @contextlib.contextmanager
    def children(count):
        yield [Stand() for _ in range(count)]

    monkeypatch.setattr(fetchers._own.pool, "children", children)
    reader = Reader(base="", max_bytes=1, http=HttpOptions(per_host=per_host))
    assert len(list(fetchers.read_all(reader, [(f"http://a/{n}", "") for n in range(1000)], cores))) == 1000
    assert most <= 2 * threads
    assert (sum(limits.values()), min(limits.values()) > 0) == (per_host, True)


def test_where_masks_are_fetched_too_one_process_fetches_all(tmp_path, crowd):
    crowd.data = {f"/{number}.jpg": jpeg(number) for number in range(30)}
    crowd.data |= {f"/{number}.png": encode(Image.new("L", (80, 60)), "PNG") for number in range(30)}
    with serving(dict.fromkeys(crowd.data, crowd)) as server:
        annotations = [Annotations(mask=server.url(f"/{number}.png")) for number in range(30)]
        refs = [make_ref(server.url(f"/{n}.jpg"), annotations=one) for n, one in enumerate(annotations)]
        task = task_of(tmp_path, threads=CORES)
        http = dataclasses.replace(task.reader.http, per_host=3)
        task = dataclasses.replace(task, reader=dataclasses.replace(task.reader, http=http))
        assert examine_bucket(bucket_of_refs(tmp_path, *refs), task).good == 30
    assert crowd.most == 3
    assert not fetchers._own.pool._idle


def test_a_bug_is_raised_here_with_its_trace(server):
    reader = Reader(base="", max_bytes="a bug", http=HTTP)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="(?s)Traceback.*TypeError"):
        list(fetchers.read_all(reader, places_of(server), CORES))


class Service:
    """What makes pipelines of a cluster with many worker processes, of which this one is one."""

    engine, processes = "far", 3

    def __call__(self) -> beam.Pipeline:
        return local_pipeline()

    def attach(self, _) -> None:
        return None


def test_the_workers_of_a_cluster_share_the_requests_to_a_host(tmp_path, crowd):
    crowd.data = {f"/{number}.jpg": jpeg(number) for number in range(30)}
    with serving(dict.fromkeys(crowd.data, crowd)) as server:
        urls = [server.url(path) for path in server.pages]
        (tmp_path / "urls.csv").write_text("\n".join(["image,label", *(f"{url},a" for url in urls)]))
        options = IngestOptions(source=str(tmp_path / "urls.csv"), out=str(tmp_path / "out"), threads=2, http=HTTP)
        assert run(options, Service()).counts.found == 30
    assert crowd.most == HTTP.per_host // Service.processes


def test_an_ingest_of_urls_with_several_processes_leaves_the_bytes_of_one(tmp_path):
    pages = {f"/{number}.jpg": body(jpeg(number)) for number in range(40)}
    with serving(pages) as server:
        rows = [f"{server.url(path)},{number % 2}" for number, path in enumerate(pages)]
        (tmp_path / "urls.csv").write_text("\n".join(["image,label", *rows]))
        found = []
        for threads in (CORES, 1):
            out = tmp_path / str(threads)
            run(IngestOptions(source=str(tmp_path / "urls.csv"), out=str(out), threads=threads, http=HTTP))
            found.append(files_under(out))
            assert (len(fetchers._own.pool._idle) == 2) or threads == 1
    assert found[0] == found[1]
