"""What is searched in tests: texts, an embedding model without a framework, and a tiny one on Paddle."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import List

import numpy as np
from fake_predictor import LETTERS
from tiny_pair import CHARACTERS
from tiny_ship import ship, write_trained

from ernie_pair.inference.embedder import TextEmbedder
from ernie_pair.inference.token_rows import BatchRules
from ernie_pair.inference.word_index import words_of
from ernie_pair.models.embedding_json import EmbeddingSettings
from ernie_pair.retrieval import build_index as building
from ernie_pair.retrieval import searcher as searching
from ernie_pair.retrieval.build_index import IndexConfig, make_index

DIM = 16


class HashEmbedder:
    """Adds up a vector for every character and every two that follow each other; ``calls`` counts texts."""

    max_seq_len, batch_size, num_cut, prompt, match_threshold = 20, 64, 0, "", None

    def __init__(self, fingerprint: str = "f" * 64, dim: int = DIM):
        self.fingerprint, self.dim, self.calls = fingerprint, dim, []
        self.settings = EmbeddingSettings("mean", dim, (dim,), self.max_seq_len, 0.05)
        self.model = SimpleNamespace(name="hashes", rules=BatchRules(), tokenizer=LETTERS)

    def num_tokens(self, text, role=""):
        return len(text) + 2

    def count_tokens(self, text, role=""):
        return self.num_tokens(text), text.count("?")

    def comparable(self, vectors):
        return vectors

    def embed(self, texts):
        self.calls.append(len(texts))
        vectors = np.stack([self._sum_of(text) for text in texts])
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    def embed_queries(self, texts):
        return self.embed(texts)

    embed_passages, windows_of = embed_queries, TextEmbedder.windows_of

    def _sum_of(self, text):
        words = [*text, *(text[place : place + 2] for place in range(len(text) - 1))]
        seeds = [int.from_bytes(word.encode(), "little") % (1 << 32) for word in words]
        return sum(np.random.default_rng(seed).standard_normal(self.dim) for seed in seeds)


def use_embedder(monkeypatch, embedder) -> None:
    for module in (building, searching):
        monkeypatch.setattr(module, "open_embedder", lambda *given: embedder)


def texts_of(count: int, seed: int = 0) -> List[str]:
    rng = np.random.default_rng(seed)
    found = {"".join(rng.choice(list(CHARACTERS), size)) for size in rng.integers(3, 12, 3 * count)}
    return sorted(found)[:count]


def bm25_of(query: str, texts: List[str]) -> List[float]:
    """The scores of texts by Lucene's formula: idf ln(1 + (N - n + 0.5) / (n + 0.5)), k1 1.5, b 0.75."""
    counted = [Counter(words_of(text)) for text in texts]
    lengths = [sum(words.values()) for words in counted]
    scores = [0.0] * len(texts)
    for word in words_of(query):
        holding = sum(word in words for words in counted)
        for place, words in enumerate(counted):
            norm = 1.5 * (0.25 + 0.75 * lengths[place] / np.mean(lengths))
            share = words[word] / (words[word] + norm)
            scores[place] += float(np.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5)) * share)
    return scores


def write_lines(path: Path, lines) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def index_of(folder: Path, texts, embedding_model="any", **flags) -> Path:
    rows = (json.dumps({"id": f"t{place}", "text": text}) for place, text in enumerate(texts))
    path = write_lines(folder / "texts.jsonl", rows)
    make_index(IndexConfig(str(path), str(folder / "index"), embedding_model=embedding_model, **flags))
    return folder / "index"


def write_embedder(folder: Path) -> Path:
    """A model folder that is asked as it is, by the mean of its tokens."""
    return write_trained(folder)


def write_exports(folder: Path) -> Path:
    """Write a trained model and its exports: ship for pairs, encoder for vectors of 8 or 32 numbers."""
    from ernie_pair.embeddings.embed_config import ExportEmbeddingConfig
    from ernie_pair.evaluation.embeddings.export_embedding import export_embedding

    write_trained(folder / "trained")
    ship(folder / "trained", folder / "ship", "onnx")
    settings = EmbeddingSettings("mean", 32, (8, 32), 24, 0.05)
    (folder / "trained" / "embedding.json").write_text(settings.to_json())
    export_embedding(ExportEmbeddingConfig(str(folder / "trained"), str(folder / "encoder")))
    return folder
