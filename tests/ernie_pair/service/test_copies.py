"""Copies of a model behind one queue, what bounds their calls, and what /metrics tells of GPUs."""

import asyncio
import re
import threading
from collections import Counter
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from fake_predictor import Model, ask
from tiny_search import index_of, texts_of, write_exports

from ernie_pair.core.errors import InputError
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.inference.backends import GPU_TOKENS, MAX_TOKENS
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.retrieval.searcher import PairSearcher
from ernie_pair.service import serve
from ernie_pair.service.batcher import Batching, MicroBatcher, ModelError, estimate_tokens

for library in ("httpx", "fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(library)

ONE = Batching(1, 0.0, 100)


def answers_of(models, requests, batching=ONE, **more):
    """What each of ``requests`` gets, all asked at once before the queue is closed."""

    async def main():
        async with MicroBatcher(models, batching, part_of=list.__getitem__, **more) as batcher:
            asked = [asyncio.ensure_future(batcher.ask(request)) for request in requests]
            await asyncio.sleep(0)
        assert not batcher.is_alive
        return await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)

    return asyncio.run(main())


def test_two_are_in_flight_and_one_that_fails_stops_no_other():
    both, begun = threading.Barrier(2, timeout=10), []

    def works(texts):
        begun.append(texts[0])
        both.wait()  # until the other copy computes too
        return [-text for text in texts]

    def fails(texts):
        works(texts)
        raise RuntimeError("the card is gone")

    answers = answers_of([works, fails], [[n] for n in range(6)])
    for first in (0, 2, 4):
        assert {*begun[first : first + 2]} == {first, first + 1}  # the oldest that wait
        failed = [answer for answer in answers[first : first + 2] if isinstance(answer, ModelError)]
        assert len(failed) == 1 and "the card is gone" in str(failed[0])
    assert all(answer == [-n] for n, answer in enumerate(answers) if not isinstance(answer, ModelError))


def test_the_free_one_takes_what_waits_and_the_end_waits_too():
    gate, begun = threading.Event(), []

    def free(texts):
        begun.extend(texts)
        if len(begun) == 4:
            gate.set()
        return texts

    requests = [[n] for n in range(5)]
    assert answers_of([lambda texts: gate.wait(10) and texts, free], requests) == requests
    assert begun == [1, 2, 3, 4]


@pytest.mark.parametrize("pairs, most, calls", [(2, 0, [2, 2, 1]), (9, 12, [2, 1, 1, 1]), (9, 100, [4, 1])])
def test_a_call_holds_no_more_pairs_or_tokens_than_it_may(pairs, most, calls):
    """The fourth request alone has more than 12 tokens."""
    texts, counted = [["x" * length] for length in (5, 5, 5, 80, 30)], []
    more = {"tokens_of": len, "called": lambda *pairs_and_tokens: counted.append(pairs_and_tokens)}
    assert answers_of([lambda texts: texts], texts, Batching(pairs, 60.0, 100, most), **more) == texts
    assert [pairs for pairs, _ in counted] == calls and sum(tokens for _, tokens in counted) == 125


def test_calls_are_bounded_as_batches_of_the_model_are():
    on_gpu, by_flag = BatchRules(GPU_TOKENS, rows=GPU_TOKENS), BatchRules(MAX_TOKENS).holding(500)
    for asked, rules, pairs, tokens in (
        *((0, BatchRules(MAX_TOKENS), 64, 0), (0, on_gpu, GPU_TOKENS, GPU_TOKENS)),
        *((8, on_gpu, 8, GPU_TOKENS), (0, by_flag, 500, 500)),
    ):
        assert replace(ONE, max_batch=asked).within(rules) == Batching(pairs, 0.0, 100, tokens)
    assert estimate_tokens(40, "", "怎么开户") == 6 and estimate_tokens(40, "", ("怎么", "开户呀")) == 8
    assert (
        estimate_tokens(40, "query: ", (None, "怎么开户")) == 13 and estimate_tokens(40, "", "x" * 99) == 40
    )


def test_two_copies_of_each_model_answer_side_by_side(tmp_path, monkeypatch):
    """As on two GPUs, with models of ONNX Runtime on the CPU."""
    folder, texts = write_exports(tmp_path), texts_of(40)
    index = index_of(folder, texts, embedding_model=str(folder / "encoder"))
    monkeypatch.setattr(serve.ServeConfig, "each_device", lambda config: ["cpu", "cpu"])
    config = serve.ServeConfig(f"{folder}/ship", embedding_model=f"{folder}/encoder", index=f"{index}")
    served, both, calls = serve._open_models(config), threading.Barrier(2, timeout=10), Counter()

    def answer_both(answer, items, *more):
        calls[answer] += 1
        both.wait()
        return answer(items, *more)

    for copy in (served, *served.copies):
        copy.predictor.predict = partial(answer_both, copy.predictor.predict)
        copy.embedder.embed = partial(answer_both, copy.embedder.embed)
    pairs = [("今天", "明天好"), ("再见", "再见")]

    async def asked(client):
        async def send(path, *bodies):
            answers = await asyncio.gather(*(client.post(path, json=body) for body in bodies))
            return [answer.json() for answer in answers]

        return [
            await send("/predict", *({"pairs": [pair]} for pair in pairs)),
            await send("/v1/embeddings", *({"input": text} for text in texts[:2])),
            await send("/search", *({"query": text, "top_k": 3} for text in texts[:2])),
        ]

    more = {"embedder": served.embedder, "texts": served.texts, "copies": served.copies, "max_batch": 1}
    predicted, embedded, found = ask(served.predictor, asked, **more)
    scores, vectors = [a["scores"][0] for a in predicted], [a["data"][0]["embedding"] for a in embedded]
    np.testing.assert_allclose(scores, PairPredictor(folder / "ship").predict(pairs).probabilities, atol=1e-5)
    np.testing.assert_allclose(vectors, open_embedder(folder / "encoder").embed(texts[:2]), atol=1e-5)
    searcher = PairSearcher(index, folder / "encoder", folder / "ship")
    wanted = [[hit.id for hit in searcher.search(text, 3)] for text in texts[:2]]
    assert [[hit["id"] for hit in answer["hits"]] for answer in found] == wanted
    assert [*calls.values()] == [2] * 4  # of each of both models one by the search


def test_models_on_paddle_have_no_copies(monkeypatch):
    served = SimpleNamespace(predictor=None, embedder=SimpleNamespace(backend="paddle, plain"))
    served.model_name, served.embedding_name = "", "encoder"
    monkeypatch.setattr(serve, "check_gpus", lambda numbers, flag: None)
    monkeypatch.setattr(serve, "_open_on", lambda config, device: {"gpu:0": served}[device])  # no other
    with pytest.raises(InputError, match="^devices 0,1: encoder runs on Paddle.* format onnx-gpu"):
        serve._open_models(serve.ServeConfig(embedding_model="m", device="gpu", devices="0,1"))


@pytest.mark.parametrize("says, found", [
    ("1024, 81559\n7, 8", {("used", "0"): 1024, ("total", "0"): 81559, ("used", "1"): 7, ("total", "1"): 8}),
    ("[N/A], [N/A]\n1, 2", {("used", "1"): 1, ("total", "1"): 2}),
    ("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.", {}),
    ("", {}),
])  # fmt: skip
def test_metrics_tell_the_memory_of_gpus_where_there_are_some(tmp_path, monkeypatch, says, found):
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" >> "$0.asked"\ncat <<END\n{says}\nEND\n')
    program.chmod(0o755 if says else 0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")

    async def twice(client):
        return [(await client.get("/metrics")).text for _ in range(2)][1]

    lines = re.findall(r'^ernie_pair_gpu_memory_(\w+)_bytes\{gpu="(\d+)"\} (\S+)$', ask(Model(), twice), re.M)
    assert {(kind, gpu): float(number) / 2**20 for kind, gpu, number in lines} == found
    if says:  # asked once for both
        asked = program.with_name("nvidia-smi.asked").read_text()
        assert asked == "--query-gpu=memory.used,memory.total --format=csv,noheader,nounits\n"
