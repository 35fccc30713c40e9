"""A model for the service that nobody trained, and clients of the service in this process."""

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from ernie_pair.inference.explanation import Explanation, LeftOut, Token
from ernie_pair.inference.exported_model import ExportedModel
from ernie_pair.inference.predictor import PairScorer
from ernie_pair.inference.scores import Prediction, find_unit
from ernie_pair.inference.token_rows import BatchRules

LIMITS = {"max_body": 2000, "max_pairs": 5, "max_chars": 20}


def ask(
    model,
    action,
    texts=None,
    hosts=("*",),
    limits=None,
    embedder=None,
    key="",
    copies=(),
    more=(),
    shadow=None,
    **settings,
):
    """Run ``action(client)`` against the service, which is shut down cleanly afterwards."""
    import httpx

    from ernie_pair.service.batcher import Batching
    from ernie_pair.service.request import Limits
    from ernie_pair.service.service import ServedModels, create_app

    batching = Batching(**{"max_batch": 8, "max_wait": 0.02, "max_waiting": 100, **settings})
    served = ServedModels(model, embedder, texts, "ship", "encoder", copies=copies)
    app = create_app(served, batching, Limits(**{**LIMITS, **(limits or {})}), hosts, key, *more)
    app.state.service.watch.shadow = shadow

    async def main():
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return await action(client)

    return asyncio.run(main())


def answer_and_health(predictor, pairs):
    """What a service of ``predictor`` says of ``pairs`` and of itself."""

    async def both(client):
        answer = await client.post("/predict", json={"pairs": pairs})
        return answer.json(), (await client.get("/health")).json()

    return ask(predictor, both)


LETTERS = SimpleNamespace(  # a tokenizer to which each character is a token
    pair_specials=[[0], [0], [0]],
    encode=list,
    encode_batch=lambda texts: map(list, texts),
    tokenize=lambda text: (np.arange(len(text)), np.arange(len(text)), np.arange(1, len(text) + 1)),
)


class Model:
    """Says how long both texts are together; ``gate`` holds it up, ``calls`` are what it was asked."""

    backend, precision = "onnx", "fp32"
    exported = ExportedModel(Path("none"), ("odd", "even"), 128, 1.5, {})
    threshold, symmetric, match, rules = 0.25, "average", 1, BatchRules()
    where, window_overlap, max_seq_len, tokenizer = "fake", 0, 15, LETTERS
    use_windows, in_windows = PairScorer.use_windows, PairScorer.in_windows
    identity = ("a" * 64, "")

    def __init__(self):
        self.calls, self.threads, self.gate = [], set(), threading.Event()
        self.gate.set()

    @property
    def num_classes(self):
        return len(self.exported.labels)

    @property
    def unit(self):
        return find_unit(self.exported.has_classes, self.exported.label_range)

    def predict(self, pairs):
        self.calls.append(len(pairs))
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(10)
        if any("bad" in a for a, _ in pairs):
            raise RuntimeError("out of luck")
        lengths = np.array([len(a) + len(b) for a, b in pairs])
        classes = 1 - lengths % 2
        shares = np.stack([lengths / 100, 1 - lengths / 100], axis=1)
        labels = [self.exported.labels[number] for number in classes]
        return Prediction(classes, labels, shares, shares[:, self.match])

    def explain(self, a, b):
        score = float(self.predict([(a, b)]).scores[0])
        numbers = {"score": score, "a_b": score, "b_a": score, "probabilities": [1 - score, score]}
        tokens = [Token(character, int(character in b), False, False) for character in a]
        said = {"verdict": f"odd: the probability of class 1 is {score:.4f}, below the threshold 0.9900"}
        decided = {"label": "odd", "class_number": 0, "threshold": 0.99, "symmetric": "none"}
        model = {"logits": [0.0, 1.0], "temperature": 1.5, "max_seq_len": 128, "has_match_embeddings": False}
        words = {
            "tokens_a": tokens,
            "tokens_b": [],
            "left_out": [LeftOut("a", 0, a, 0.0, score)],
            "nearest": [],
        }
        return Explanation(text_a=a, text_b=b, **said, **decided, **numbers, **model, **words)
