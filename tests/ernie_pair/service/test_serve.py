"""The service in this process, through its ASGI interface; one test starts it as a real process."""

import asyncio
import re
import socket
import sys
import threading
from dataclasses import replace

import pytest
from fake_predictor import Model, ask

from ernie_pair.core.cli.cli import exit_code_of
from ernie_pair.core.errors import InputError
from ernie_pair.core.installation import extra_here, install_command
from ernie_pair.inference.scores import PROBABILITY
from ernie_pair.runtime.processes.sockets import listen
from ernie_pair.service.serve import ServeConfig, serve

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from ernie_pair.service import request  # noqa: E402 - they need the libraries of the extra
from ernie_pair.service.batcher import Batching, BusyError, MicroBatcher  # noqa: E402


@pytest.fixture
def model():
    return Model()


def post(client, *pairs):
    return client.post("/predict", json={"pairs": pairs})


def texts(*lengths):
    return [["x" * length, "y"] for length in lengths]


def test_labels_and_scores_come_in_the_order_of_the_pairs(model):
    answer = ask(model, lambda client: post(client, *texts(1, 2, 9)))
    assert answer.status_code == 200
    content = answer.json()
    assert content.pop("milliseconds") >= 0
    scores = [[0.02, 0.98], [0.03, 0.97], [0.1, 0.9]]
    assert content == {"labels": ["even", "odd", "even"], "classes": [1, 0, 1], "scores": scores}
    assert model.calls == [3]


def test_simultaneous_requests_share_calls_but_not_answers(model):
    async def many(client):
        return await asyncio.gather(*(post(client, *texts(n % 10, n % 7 + 1)[1:]) for n in range(24)))

    answers = ask(model, many, max_wait=0.2)
    assert [answer.json()["scores"][0][0] for answer in answers] == [(n % 7 + 2) / 100 for n in range(24)]
    assert sum(model.calls) == 24 and len(model.calls) <= 5 and max(model.calls) <= 8
    assert len(model.threads) == 1 and model.threads != {threading.main_thread().name}


async def waiting(client, model, pairs):
    """Wait until the model is busy and ``pairs`` wait for it; /health is answered meanwhile."""
    while not model.calls or (await client.get("/health")).json()["waiting_pairs"] < pairs:
        await asyncio.sleep(0.001)


def test_a_lone_request_is_not_delayed(model):
    async def one_by_one(client):
        return [await asyncio.wait_for(post(client, *texts(n)), 5) for n in (1, 2, 3)]

    assert len(ask(model, one_by_one, max_wait=60.0)) == 3 and model.calls == [1, 1, 1]


def test_a_batch_waits_for_recently_active_clients(model):
    async def twice(client):
        await post(client, *texts(1))
        await asyncio.sleep(0.05)
        await post(client, *texts(2))

    async def three(client):
        model.gate.clear()
        first = asyncio.ensure_future(twice(client))
        await waiting(client, model, 0)
        others = [asyncio.ensure_future(post(client, *texts(n))) for n in (3, 4)]
        await waiting(client, model, 2)
        model.gate.set()
        await asyncio.wait_for(asyncio.gather(first, *others), 5)

    ask(model, three, max_wait=60.0)
    assert model.calls == [1, 3]  # as soon as the first asks again


def test_a_request_is_never_split_across_batches(model):
    async def three(client):
        return await asyncio.gather(*(post(client, *texts(*[size] * size)) for size in (3, 2, 5)))

    answers = ask(model, three, max_batch=4, max_wait=0.05)
    assert [len(answer.json()["labels"]) for answer in answers] == [3, 2, 5]
    assert model.calls == [3, 2, 5]  # no two of them fit into one call of 4


def test_a_full_queue_rejects_requests_at_once(model):
    async def crowd(client):
        model.gate.clear()
        accepted = []
        for pairs in (0, 2, 4):
            accepted.append(asyncio.ensure_future(post(client, *texts(1, 1))))
            await waiting(client, model, pairs)
        refused = await post(client, *texts(1, 1))
        model.gate.set()
        return refused, await asyncio.gather(*accepted)

    refused, answers = ask(model, crowd, max_batch=2, max_waiting=5, max_wait=0.0)
    assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
    assert refused.json() == {"error": "too many pairs are waiting; try again in a second"}
    assert [answer.status_code for answer in answers] == [200, 200, 200]


def test_a_cancelled_request_does_not_affect_others(model):
    async def main():
        async with MicroBatcher([model.predict], Batching(2, 0.05, 100)) as batcher:
            gone, stays = (asyncio.ensure_future(batcher.ask([("x", "y")])) for _ in range(2))
            await asyncio.sleep(0)
            gone.cancel()
            return await stays

    assert asyncio.run(main()).labels == ["even"]


class Panic(BaseException):
    """As a library in Rust raises it: no Exception."""


class Wrong:
    """A model whose calls go wrong: they raise ``error``, or return what is no answer."""

    def __init__(self, error=None):
        self.error = error

    def __call__(self, pairs):
        if any("bad" in a for a, _ in pairs):
            if self.error is not None:
                raise self.error
            return None
        return Model().predict(pairs)


@pytest.mark.parametrize(
    "error",
    [RuntimeError("out of luck"), Panic("index out of bounds"), RecursionError(), MemoryError(), None],
    ids=lambda error: repr(error),
)
def test_the_service_goes_on_after_anything_that_a_model_raises(model, error):
    model.predict = Wrong(error)

    async def some(client):
        failed = await post(client, ["bad", "x"])
        both = await asyncio.gather(post(client, ["bad", "y"]), post(client, *texts(2)))
        return failed, *both, await client.get("/health")

    failed, again, fine, health = ask(model, some, max_wait=0.2)
    assert [answer.status_code for answer in (failed, again, fine)] == [500, 500, 200]
    assert failed.json() == {"error": "the model failed; the log of the service says why"}
    assert health.status_code == 200 and health.json()["status"] == "ok"
    assert health.json()["failed_calls"] == 2  # a request is not at fault for another of its call


def test_a_panic_outside_of_the_queue_is_answered_too(model):
    """As that of a tokenizer that counts the tokens of a query, in the thread of the event loop."""
    about = {"unit": PROBABILITY, "recall_k": 5, "count": 9, "state": (None, None)}
    found = {
        "recall": lambda queries, **more: [[] for _ in queries],
        "check_columns": lambda where: None,
        "answering_of": lambda where, top_k: None,
    }
    index = type("Index", (), {**about, **found})

    def why_refused(query, cuts):
        if query == "bad":
            raise Panic
        return ""

    index.why_refused = why_refused

    async def both(client):
        return [await client.post("/search", json={"query": query}) for query in ("bad", "good")]

    assert [answer.status_code for answer in ask(model, both, texts=index)] == [500, 200]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_still_does(model, error):
    model.predict = Wrong(error())
    with pytest.raises(error):
        ask(model, lambda client: post(client, ["bad", "x"]))


def test_nobody_waits_for_a_queue_that_has_ended(model):
    async def main():
        batcher = await MicroBatcher([model.predict] * 2, Batching(2, 0, 100)).__aenter__()
        await asyncio.sleep(0.01)
        batcher._workers[0].cancel()
        await asyncio.sleep(0.01)
        assert not batcher.is_alive and all(worker.done() for worker in batcher._workers)
        with pytest.raises(BusyError):
            await asyncio.wait_for(batcher.ask([("x", "y")]), 5)
        with pytest.raises(asyncio.CancelledError):
            await batcher.__aexit__()

    asyncio.run(main())


def test_the_device_is_that_of_both_models(monkeypatch):
    asked = []

    def opened(folder, device, *more):
        asked.append((folder, device))
        raise InputError("enough")

    monkeypatch.setattr("ernie_pair.service.serve.open_embedder", opened)
    with pytest.raises(InputError, match="enough"):
        serve(ServeConfig(embedding_model="encoder", device="gpu", port=0))
    assert asked == [("encoder", "gpu")]


def test_a_field_of_null_is_as_good_as_none(model):
    body = {"query": "a", "candidates": ["b"], "top_k": None}
    assert ask(model, lambda client: client.post("/rank", json=body)).status_code == 200


def test_a_body_without_content_length_is_limited_too(model):
    async def chunks():
        for _ in range(30):
            yield b" " * 100

    answer = ask(model, lambda client: client.post("/predict", content=chunks()))
    assert answer.status_code == 413


def test_a_body_that_does_not_arrive_times_out(monkeypatch):
    monkeypatch.setattr(request, "BODY_SECONDS", 0.05)

    async def chunks():
        yield b"{"
        await asyncio.sleep(60)

    answer = ask(Model(), lambda client: client.post("/predict", content=chunks()))
    assert answer.status_code == 408 and "did not arrive" in answer.json()["error"]


@pytest.mark.parametrize("method, path, status, reason", [
    ("GET", "/nothing", 404, "there is no such path here; /openapi.json describes"),
    ("POST", "/search", 404, "the service has no index: start it with --index and --embedding_model; "),
    ("GET", "/predict", 405, "/predict does not accept GET; use POST"),
    ("POST", "/health", 405, "/health does not accept POST; use "),
])  # fmt: skip
def test_unsupported_routes_get_an_error_saying_what_to_use(model, method, path, status, reason):
    answer = ask(model, lambda client: client.request(method, path))
    assert answer.status_code == status and list(answer.json()) == ["error"]
    assert answer.json()["error"].startswith(reason)


def test_health_describes_the_served_model(model):
    model.exported = replace(model.exported, verdict="it was measured: ...", learned_nothing="too few pairs")
    answer = ask(model, lambda client: client.get("/health"))
    assert answer.status_code == 200
    facts = {"models": ["ship"], "vector_length": None, "backend": "onnx", "precision": "fp32"}
    facts.update(target="classification", label_range=None)
    facts.update(labels=["odd", "even"], max_seq_len=128, waiting_pairs=0, indexed_texts=None)
    facts.update(failed_calls=0, match=1, example=None)
    facts.update(verdict="it was measured: ...", caution="too few pairs")
    facts["versions"] = [{"name": "ship", "fingerprint": "a" * 64, "version": "", "date": ""}]
    facts.update(temperature=1.5, threshold=0.25, symmetric="average")
    assert answer.json() == {"status": "ok", **facts}


def test_metrics_count_requests_pairs_errors_and_batches(model):
    async def some(client):
        for pairs in (texts(1, 2, 3), texts(1), [["", "b"]]):
            await post(client, *pairs)
        return await client.get("/metrics")

    answer = ask(model, some)
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    expected = {
        'ernie_pair_requests_total{status="200"}': "2.0",
        'ernie_pair_requests_total{status="422"}': "1.0",
        "ernie_pair_errors_total": "1.0",
        "ernie_pair_pairs_total": "4.0",
        'ernie_pair_request_seconds_count{endpoint="/predict"}': "3.0",
        'ernie_pair_batch_pairs_bucket{le="1.0"}': "1.0",
        'ernie_pair_batch_pairs_bucket{le="4.0"}': "2.0",
        "ernie_pair_batch_pairs_sum": "4.0",
        'ernie_pair_batch_tokens_sum{queue="pairs"}': "23.0",
        'ernie_pair_batch_tokens_count{queue="pairs"}': "2.0",
        "ernie_pair_waiting_pairs": "0.0",
    }
    assert {name: lines.get(name) for name in expected} == expected


@pytest.mark.parametrize("library", ["fastapi", "uvicorn", "prometheus_client"])
def test_the_error_names_a_missing_library(monkeypatch, capfd, library):
    monkeypatch.setitem(sys.modules, library, None)
    assert exit_code_of(lambda: serve(ServeConfig("m"))) == 2
    assert f"error: {library} is not installed; {install_command(extra_here())}" in capfd.readouterr().err


def test_a_taken_port_or_missing_model_gives_a_one_line_error(tmp_path, capfd):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert exit_code_of(lambda: serve(ServeConfig("m", port=port))) == 5
    assert f"--port {port}: Address already in use; choose others" in capfd.readouterr().err
    assert exit_code_of(lambda: serve(ServeConfig(str(tmp_path), port=0))) == 2
    assert "holds no export.json" in capfd.readouterr().err


def test_small_responses_are_not_delayed_by_nagle():
    """asyncio sets TCP_NODELAY only on sockets that say they are TCP; without it answers take 40 ms more."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_the_page_is_self_contained_with_a_strict_csp(model):
    page = ask(model, lambda client: client.get("/"))
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert re.findall(r"(?:https?:)?//\w|url\(|@import|<link[^>]*stylesheet|src=", page.text) == []
    assert set(re.findall(r'fetch\("(\w+)"', page.text)) == {"predict", "explain", "rank", "search", "health"}
