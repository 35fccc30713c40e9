"""Collect what the quickstart made in quickstart.json, and print it as a table.

python scripts/quickstart_table.py output/quickstart                       the last step of quickstart.sh
python scripts/quickstart_table.py --publish output/a output/b output/c    several seeds, into the READMEs
"""

import json
import re
import sys
from pathlib import Path
from typing import Dict, List, Tuple

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "scripts" / "results" / "quickstart.json"
PAGES = {"README.md": "seed", "README_cn.md": "随机种子"}
STARTS = {"pair": "pretrained", "pair_scratch": "from scratch"}
BLOCK = re.compile(r"(?<=<!-- quickstart -->\n)(.*)(?=\n<!-- end of quickstart -->)", re.S)

Results = Dict[str, object]


def main(words: List[str]) -> None:
    if words[:1] == ["--publish"]:
        publish([Path(word) for word in words[1:]])
        return
    (folder,) = map(Path, words)
    results = collect_results(folder)
    (folder / PUBLISHED.name).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"\n{render_table(results, str(folder))}")
    python = Path(sys.executable)
    print(f"\nsee the runs: {python.with_name('visualdl')} --logdir {folder} --language en")


def publish(folders: List[Path]) -> None:
    """Keep the results of finished quickstarts in PUBLISHED and show them in both READMEs."""
    runs = [json.loads((folder / PUBLISHED.name).read_text(encoding="utf-8")) for folder in folders]
    PUBLISHED.parent.mkdir(exist_ok=True)
    PUBLISHED.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    for name, seed in PAGES.items():
        before, _, after = BLOCK.split((ROOT / name).read_text(encoding="utf-8"))
        (ROOT / name).write_text(f"{before}{render_block(runs, seed)}{after}", encoding="utf-8")


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
        ("made", f"where, in {folder}", "result"),
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


def render_block(runs: List[Results], seed: str) -> str:
    """Return what a README shows: the table of the first run, and a row for each seed."""
    head = [seed, "lm_loss", "pretrained", "from scratch", "flips", "both orders"]
    rows = [head, ["---"] * len(head), *map(_row_of_seed, runs)]
    shown = "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
    return f"```\n{render_table(runs[0], 'output/quickstart')}\n```\n\n{shown}"


def _row_of_seed(results: Results) -> List[str]:
    pretrained, scratch = (results[start] for start in STARTS.values())
    accuracies = [
        "{:.3f} ({:.3f} to {:.3f})".format(measured["accuracy"], *measured["interval"])
        for measured in (pretrained, scratch)
    ]
    losses = "{:.3f} -> {:.3f}".format(*results["valid_lm_loss"])
    flips, both = f"{pretrained['flip_rate']:.1%}", f"{pretrained['accuracy_both_orders']:.3f}"
    return [str(results["seed"]), losses, *accuracies, flips, both]


if __name__ == "__main__":
    main(sys.argv[1:])
