"""The figures of a finished quickstart, and the table that shows them."""

import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

STARTS = {"pair": "pretrained", "pair_scratch": "from scratch"}

Results = Dict[str, Any]


def collect_results(folder: Path) -> Results:
    """Return the figures of a finished quickstart: the losses and the metrics on the test pairs."""
    corpus = json.loads((folder / "corpus/text.manifest.json").read_text(encoding="utf-8"))
    run = json.loads((folder / "pretrain/model_last/MANIFEST.json").read_text(encoding="utf-8"))
    valid = _read_valid_losses(folder / "pretrain/metrics.jsonl")
    return {
        "seed": run["fingerprint"]["seed"],
        "tokens": corpus["tokens"],
        "valid_lm_loss": [round(valid[place], 4) for place in (0, -1)],
        **{start: _collect_metrics(folder / name) for name, start in STARTS.items()},
    }


def _read_valid_losses(path: Path) -> List[float]:
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [event["lm_loss"] for event in events if event["split"] == "valid"]


def _collect_metrics(run: Path) -> Results:
    """Return accuracy, its 95 % interval, and what changes when the two texts change places."""
    measured = json.loads((run / "test.json").read_text(encoding="utf-8"))
    return {
        "model": "/".join(next(run.glob("best-accuracy-*")).parts[-2:]),
        "accuracy": round(measured["accuracy"], 4),
        "interval": [round(end, 4) for end in measured["intervals"]["accuracy"]],
        "flip_rate": round(measured["swap"]["flip_rate"], 4),
        "accuracy_both_orders": round(measured["swap"]["accuracy_both_orders"], 4),
    }


def render_table(results: Results, folder: str) -> str:
    """Return the table that ends a quickstart: what was made, where below ``folder``, and its figures."""
    first, last = results["valid_lm_loss"]
    rows = [
        ("output", f"path in {folder}", "result"),
        ("sample text and pairs", "sample/", ""),
        ("corpus of token ids", "corpus/text_ids.npy", f"{results['tokens']} tokens"),
        ("static ERNIE", "pretrain/model_last", f"validation lm_loss {first:.3f} -> {last:.3f}"),
        ("dynamic ERNIE", "dynamic/", ""),
        *(_row_of_classifier(start, results[start]) for start in STARTS.values()),
        ("predictions", "predictions.tsv", ""),
    ]
    width = max(len(where) for _, where, _ in rows) + 2
    return "\n".join(f"{made:<26}{where:<{width}}{result}".rstrip() for made, where, result in rows)


def _row_of_classifier(start: str, measured: Results) -> Tuple[str, str, str]:
    return f"classifier, {start}", measured["model"], f"test accuracy {measured['accuracy']:.3f}"
