"""The service under load for half an hour, started again on a larger index: right answers, flat memory."""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
from launched import one_thread
from tiny_pair import CHARACTERS
from tiny_search import texts_of, write_embedder, write_lines
from tiny_ship import ship, write_trained
from waiting import free_port, until

from ernie_pair import PairPredictor
from ernie_pair.embeddings.open_embedder import open_embedder

for library in ("fastapi", "uvicorn", "prometheus_client", "faiss"):
    pytest.importorskip(library)

SECONDS = 60 * float(os.environ.get("SOAK_MINUTES", "30"))
CLIENTS, NEW = 8, CHARACTERS[:3] * 6
# Until when a process of the service has touched all that it keeps, and what malloc may round.
WARM_SHARE, SLACK = 0.4, 1.05


def command(*words):
    return [sys.executable, "-m", "ernie_pair", *map(str, words)]


def memory_of(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


class Load:
    """Clients that ask until they are told to end; what differs from what is ``known`` is a fault."""

    def __init__(self, port, requests):
        self.address, self.requests = f"http://127.0.0.1:{port}", requests
        self.is_up, self.ends, self.asked = threading.Event(), threading.Event(), 0
        self.known, self.faults, self.starts = {}, [], 0
        self.clients = [threading.Thread(target=self.ask_on, args=(seed,)) for seed in range(CLIENTS)]

    def ask(self, path, body):
        data = json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.address}{path}", data, timeout=60) as answer:
            found = json.load(answer)
        found.pop("milliseconds", None)  # OpenAI's answer has none
        return found

    def ask_on(self, seed):
        rng = random.Random(seed)
        while not self.ends.is_set() and not self.faults:
            place = rng.randrange(len(self.requests))
            self.is_up.wait()
            try:
                # The first process searches the index as it was, and then as it has grown.
                is_search = self.requests[place][0] == "/search"
                found = self.ask(*self.requests[place])
                self.asked += 1
                known = self.known.setdefault((place, self.starts * is_search), [found])
                if any(flat(one) == pytest.approx(flat(found), abs=1e-5) for one in known):
                    continue
                known.append(found)
                if len(known) > 1 + (is_search and self.starts == 1):
                    self.faults.append((self.requests[place], known))
            except (OSError, http.client.HTTPException) as error:
                if self.is_up.is_set() and not self.ends.is_set():  # while there is a service none is lost
                    self.faults.append((self.requests[place], error))


def flat(value):
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for name, part in parts:
        inner = flat(part) if isinstance(part, (dict, list)) else {"": part}
        found.update({f"{name}/{place}": each for place, each in inner.items()})
    return found


def hold(words, log, load, meanwhile):
    """Run the service for half of the time under ``load``; return what it then finds for NEW."""
    with open(log, "w") as stderr:  # COLD: a process of its own, whose memory is measured
        service = subprocess.Popen(command(*words), stderr=stderr, env=one_thread(COLD="1"))
    try:
        until(lambda: service.poll() is not None or "http://" in log.read_text())
        load.starts += 1
        load.is_up.set()
        time.sleep(SECONDS / 2 * WARM_SHARE)
        before = memory_of(service.pid)
        meanwhile()
        time.sleep(SECONDS / 2 * (1 - WARM_SHARE))
        hits = load.ask("/search", {"query": NEW, "top_k": 50})["hits"]  # in the order of the reranker
        after = memory_of(service.pid)
        load.is_up.clear()
        service.send_signal(signal.SIGTERM)
        assert service.wait(60) == 0, log.read_text()
        print(f"{load.asked:,} answers so far; memory {before:,} kB, then {after:,} kB")  # with pytest -s
        assert after < SLACK * before, f"{before} kB grew to {after}"
        return {hit["text"] for hit in hits}
    finally:
        service.kill()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
def test_a_service_answers_rightly_for_half_an_hour(tmp_path):
    model = ship(write_trained(tmp_path / "model"), tmp_path / "ship")
    embedder = write_embedder(tmp_path / "m")
    texts, index, port, rng = texts_of(300), tmp_path / "index", free_port(), random.Random(0)
    write_lines(tmp_path / "texts.txt", texts)
    write_lines(tmp_path / "new.tsv", [f"new\t{NEW}"])

    def grow(file, *more):
        words = ["--input_file", tmp_path / file, "--embedding_model", embedder, "--output_dir", index]
        subprocess.run(command("index", *words, *more), check=True, env=one_thread())

    grow("texts.txt")
    serve = ("serve", "--model_path", model, "--index", index, "--embedding_model", embedder, "--port", port)
    pick = lambda: "".join(rng.choices(CHARACTERS, k=rng.randint(1, 18)))  # noqa: E731
    pairs = [[[pick(), pick()] for _ in range(rng.randint(1, 20))] for _ in range(40)]
    requests = [("/predict", {"pairs": each}) for each in pairs]
    requests += [("/rank", {"query": pick(), "candidates": rng.sample(texts, 30)}) for _ in range(20)]
    inputs = [[pick() for _ in range(rng.randint(1, 20))] for _ in range(20)]
    requests += [("/v1/embeddings", {"input": each}) for each in inputs]
    requests += [("/search", {"query": pick(), "top_k": 5}) for _ in range(20)]
    load = Load(port, requests)
    for client in load.clients:
        client.start()
    try:
        # The index grows under the feet of the first process, which opens it again.
        first = hold(serve, tmp_path / "first.log", load, lambda: grow("new.tsv", "--add"))
        second = hold(serve, tmp_path / "second.log", load, lambda: None)
    finally:
        load.ends.set()
        load.is_up.set()
        for client in load.clients:
            client.join()
    assert not load.faults, load.faults[0]
    assert load.asked > SECONDS and len(load.known) == len(requests) + 20  # searches of both processes
    predictor, one = PairPredictor(str(model)), open_embedder(embedder)
    for place, (path, body) in enumerate(requests):
        answer = load.known.get((place, 0), [{}])[0]
        if path == "/predict":
            wanted = predictor.predict([tuple(pair) for pair in body["pairs"]]).probabilities
            np.testing.assert_allclose(answer["scores"], wanted, atol=1e-4)
        elif path == "/v1/embeddings":
            found = [each["embedding"] for each in answer["data"]]
            np.testing.assert_allclose(found, one.embed(body["input"]), atol=1e-4)
    assert len(first) == len(second) == 50 and NEW in first & second
