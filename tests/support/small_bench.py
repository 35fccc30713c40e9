"""A case of the benchmarks in the smallest size."""

import json
from pathlib import Path
from typing import Any, Dict

from bench import BenchConfig, compare
from side_by_side import cases, waiting
from tiny_pair import VOCAB, write_pairs

from data_tools.make_sample import SampleConfig, make_sample


def small_bench(folder: Path, monkeypatch):
    """Return a function that measures a case beside the peer of a Python, and returns its figures."""
    make_sample(SampleConfig(output_dir=str(folder / "sample"), documents=200))
    characters = sorted(set((folder / "sample" / "corpus.txt").read_text(encoding="utf-8")) - {"\n", " "})
    tokens = dict.fromkeys([*VOCAB, *characters, *(f"##{character}" for character in characters)])
    vocab = folder / "vocab.txt"
    vocab.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
    monkeypatch.setattr(cases, "DOCUMENTS", 200)
    monkeypatch.setattr(waiting, "SECONDS", 0.5)

    def measure(case: str, peer: str, **flags: Any) -> Dict[str, Any]:
        output = folder / "out.json"
        small = {"num_hidden_layers": 1, "hidden_size": 64, "batch_size": 4, "max_seq_len": 32}
        turns_of_each = {"rounds": 2, "steps": 1, "warmup": 1, "device": "cpu", "peer_python": peer}
        files = (str(write_pairs(folder / "pairs.tsv", 40)), str(vocab))
        compare(BenchConfig(*files, cases=case, output=str(output), **{**small, **turns_of_each, **flags}))
        (figures,) = json.loads(output.read_text())["cases"]
        return figures

    return measure
