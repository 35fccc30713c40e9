"""What the quickstart made and where it lies.

python scripts/quickstart_table.py output/quickstart
"""

import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    rows = [
        ("sample text and pairs", "sample/", ""),
        ("corpus of token ids", "corpus/text_ids.npy", _tokens(folder / "corpus/text.manifest.json")),
        ("static ERNIE", "pretrain/model_last", _losses(folder / "pretrain/metrics.jsonl")),
        ("dynamic ERNIE", "dynamic/", ""),
        ("classifier, pretrained", _best(folder / "pair"), _accuracy(folder / "pair/test.json")),
        (
            "classifier, from scratch",
            _best(folder / "pair_scratch"),
            _accuracy(folder / "pair_scratch/test.json"),
        ),
        ("predictions", "predictions.tsv", ""),
    ]
    print(f"\n{'made':<26}{'where, in ' + str(folder):<44}result")
    for made, where, result in rows:
        print(f"{made:<26}{where:<44}{result}")
    python = Path(sys.executable)
    print(f"\nsee the runs: {python.with_name('visualdl')} --logdir {folder} --language en")


def _tokens(manifest: Path) -> str:
    return f"{json.loads(manifest.read_text(encoding='utf-8'))['tokens']} tokens"


def _losses(metrics: Path) -> str:
    events = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    valid = [event["lm_loss"] for event in events if event["split"] == "valid"]
    return f"validation lm_loss {valid[0]:.3f} -> {valid[-1]:.3f}"


def _best(run: Path) -> str:
    return "/".join(next(run.glob("best-accuracy-*")).parts[-2:])


def _accuracy(report: Path) -> str:
    return f"test accuracy {json.loads(report.read_text(encoding='utf-8'))['accuracy']:.4f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
