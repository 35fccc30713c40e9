"""Mined negatives and the losses of rankers beside sentence-transformers, on random vectors and scores."""

import json
import os
import subprocess
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from other_libraries.client import NO_NETWORK, PATH_OF_PEER
from places import ROOT
from tiny_pair import write_rows
from tiny_search import texts_of, write_lines

from ernie_pair.embeddings import open_embedder as opening
from ernie_pair.inference.token_rows import Batch
from ernie_pair.mining.mine_pairs import MineConfig, mine_pairs
from ernie_pair.pairs.config.pair_config import PairConfig
from ernie_pair.pairs.train.loss import ranking_loss_of

# {our flag: theirs}; the range of a margin is the whole corpus there.
NAMES = {
    "min_rank": "range_min",
    "max_rank": "range_max",
    "absolute_margin": "absolute_margin",
    "relative_margin": "relative_margin",
    "max_similarity": "max_score",
    "min_similarity": "min_score",
    "per_text": "num_negatives",
}
CASES = [
    {"per_text": 3},
    {"per_text": 4, "min_rank": 10, "max_rank": 50},
    {"per_text": 5, "min_rank": 7},
    {"per_text": 3, "absolute_margin": 0.1},
    {"per_text": 3, "absolute_margin": 0.0},
    {"per_text": 3, "relative_margin": 0.05},
    {"per_text": 2, "relative_margin": 0.3, "absolute_margin": 0.05},
    {"per_text": 6, "max_similarity": 0.4, "min_similarity": 0.1},
    {"per_text": 3, "relative_margin": 0.05, "max_rank": 25},
]
# Of the package `datasets` it uses columns alone, which the newest environment does without.
MINE = """
import json, sys, types
import numpy as np, torch
from sentence_transformers.util import hard_negatives

class Dataset:
    def __init__(self, columns):
        self.columns, self.column_names = columns, list(columns)
    from_dict = classmethod(lambda cls, columns: cls(columns))
    __getitem__ = lambda self, name: self.columns[name]
    __len__ = lambda self: len(self.columns[self.column_names[0]])
    to_pandas = count = to_dict = lambda self: self
    groupby = lambda self, name: Counted(self.columns[name])

class Counted:
    def __init__(self, anchors):
        self.counts = {text: anchors.count(text) for text in sorted(set(anchors))}
    count = lambda self: self
    to_dict = lambda self: {"positive": self.counts}

sys.modules["datasets"] = types.SimpleNamespace(Dataset=Dataset)
hard_negatives.is_datasets_available = lambda: True
asked = json.load(open(sys.argv[1]))
of = lambda side: lambda texts, **flags: np.array([asked[side][text] for text in texts], np.float32)
model = types.SimpleNamespace(
    device="cpu", model_card_data=types.SimpleNamespace(base_model=""),
    encode_query=of("queries"), encode_document=of("passages"),
    similarity=lambda one, other: torch.as_tensor(one) @ torch.as_tensor(other).T,
    similarity_pairwise=lambda one, other: (torch.as_tensor(one) * torch.as_tensor(other)).sum(dim=1),
)
found = []
for case in asked["cases"]:
    columns = dict(zip(("anchor", "positive"), map(list, zip(*asked["pairs"]))))
    mined = hard_negatives.mine_hard_negatives(
        Dataset(columns), model, corpus=asked["corpus"], output_format="labeled-pair", verbose=False, **case
    )
    rows = zip(mined["anchor"], mined["positive"], mined["label"])
    negatives = {}
    for anchor, text, label in rows:
        if not label:
            negatives.setdefault(anchor, []).append(text)
    found.append(negatives)
json.dump(found, open(sys.argv[2], "w"))
"""
LOSSES = """
import json, sys, types
import torch
from sentence_transformers.cross_encoder import losses
from sentence_transformers.cross_encoder.losses import lambda_loss

class Model(torch.nn.Module):
    num_labels, device = 1, "cpu"
    preprocess = lambda self, pairs, **flags: {"x": torch.tensor([float(text) for _, text in pairs])}
    forward = lambda self, tokens: {"scores": tokens["x"]}

asked, model = json.load(open(sys.argv[1])), Model()
scheme = lambda_loss.LambdaRankScheme()
made = {
    "listnet": losses.ListNetLoss(model),
    "ranknet": losses.RankNetLoss(model, reduction_log="natural"),
    "lambdarank": losses.LambdaLoss(model, weighting_scheme=scheme, reduction_log="natural"),
}
found = []
for scores, labels in asked:
    inputs = [["q"], [[repr(score) for score in scores]]]
    found.append({name: float(loss(inputs, [torch.tensor(labels)])) for name, loss in made.items()})
json.dump(found, open(sys.argv[2], "w"))
"""


def there(newest, folder, program, asked):
    (folder / "asked.json").write_text(json.dumps(asked), encoding="utf-8")
    words = [newest.python, "-c", program, folder / "asked.json", folder / "found.json"]
    environment = {**os.environ, **NO_NETWORK, **PATH_OF_PEER}
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads((folder / "found.json").read_text(encoding="utf-8"))


def test_mined_negatives_are_theirs(newest, tmp_path, monkeypatch):
    """Queries have one to three matches; the corpus holds them all."""
    rng, texts = np.random.default_rng(0), texts_of(260)
    texts = [texts[place] for place in rng.permutation(len(texts))]
    queries, matches, corpus = texts[:40], iter(texts[40:120]), texts[40:]
    pairs = [(query, next(matches)) for number, query in enumerate(queries) for _ in range(1 + number % 3)]
    vectors = rng.normal(size=(2, len(texts), 12))
    for query, match in pairs:  # a match is nearer than most
        vectors[1, texts.index(match)] += vectors[0, texts.index(query)]
    vectors = (vectors / np.linalg.norm(vectors, axis=2, keepdims=True)).astype(np.float32)
    sides = dict(zip(("query", "passage"), (dict(zip(texts, side)) for side in vectors)))
    embedder = SimpleNamespace(
        has_roles=True,
        settings=SimpleNamespace(check_search=lambda folder: None),
        unit_vectors=lambda part, role: np.stack([sides[role][text] for text in part]),
    )
    monkeypatch.setattr(opening, "open_embedder", lambda *given: embedder)
    cases = []
    for case in CASES:
        named = {NAMES[flag]: value for flag, value in case.items()}
        cases.append({"range_max": len(corpus), **named})
    side_lists = ({text: side[text].tolist() for text in side} for side in sides.values())
    asked = dict(zip(("queries", "passages"), side_lists))
    theirs = there(newest, tmp_path, MINE, {**asked, "pairs": pairs, "corpus": corpus, "cases": cases})
    train = write_rows(tmp_path / "train.tsv", [(*pair, 1) for pair in pairs])
    file, out = write_lines(tmp_path / "corpus.txt", corpus), tmp_path / "out.tsv"
    wide = {"min_similarity": 0.0, "max_similarity": 1.0, "device": "cpu"}
    for case, wanted in zip(CASES, theirs):
        flags = {**wide, "embedding_model": "any", "corpus": str(file), "overwrite": True, **case}
        mine_pairs(MineConfig(str(train), str(out), **flags))
        found = {}
        for line in out.read_text(encoding="utf-8").splitlines()[1:]:
            query, text, *_ = line.split("\t")
            found.setdefault(query, []).append(text)
        assert found == wanted and found, case


def test_losses_of_rankers_are_theirs(newest, tmp_path):
    """Of one query at a time: over several they average pairs, and we average queries."""
    rng, lists = np.random.default_rng(1), []
    for number in range(40):
        size = int(rng.integers(2, 30))
        best = 1 if number % 2 else 3
        labels = [0, best, *rng.integers(0, best + 1, size - 2).tolist()]
        lists.append((rng.normal(size=size).astype(np.float32).tolist(), list(map(float, labels))))
    for (scores, labels), wanted in zip(lists, there(newest, tmp_path, LOSSES, lists)):
        ids = np.arange(len(scores))[:, None]
        batch = Batch(ids, ids, np.stack([np.array(labels, np.int64), ids[:, 0] * 0], axis=1))
        outputs = paddle.to_tensor(np.array(scores, np.float32)[:, None])
        for name, value in wanted.items():
            if name == "lambdarank" and max(labels) > 1:
                continue  # they weigh by gains of 2^label - 1, we by the label; of 0 and 1 these are equal
            config = PairConfig("out", target="ranking", ranking_loss=name)
            loss = ranking_loss_of(config)(lambda *rows, outputs=outputs: outputs, batch).loss
            assert float(loss) == pytest.approx(value, abs=1e-6, rel=1e-6), name
