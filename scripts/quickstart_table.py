"""Keep the results of finished quickstarts, several seeds, and show them in both READMEs.

python scripts/quickstart_table.py output/a output/b output/c
"""

import json
import sys
from pathlib import Path
from typing import List

from readme_block import QUICKSTART, ROOT, replace_block

from ernie_pair.quickstart.figures import STARTS, Results, render_table

PUBLISHED = ROOT / "scripts" / "results" / "quickstart.json"
SEED = {"README.md": "seed", "README_cn.md": "随机种子"}


def publish(folders: List[Path]) -> None:
    """Keep the results of finished quickstarts in PUBLISHED and show them in both READMEs."""
    runs = [json.loads((folder / PUBLISHED.name).read_text(encoding="utf-8")) for folder in folders]
    PUBLISHED.parent.mkdir(exist_ok=True)
    PUBLISHED.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    replace_block(QUICKSTART, lambda page: render_block(runs, SEED[page]))


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
    publish([Path(word) for word in sys.argv[1:]])
