"""Keep the results of finished quickstarts, several seeds, and show them in the pages.

python scripts/quickstart_table.py output/a output/b output/c
"""

import json
import sys
from pathlib import Path
from typing import List

from readme_block import FIGURES, QUICKSTART, SEEDS, head_of, is_chinese, plain_rows, replace_block

from ernie_pair.checks.quickstart import BASELINE, STARTS, Results, render_table
from ernie_pair.core.files.json_file import write_json

PUBLISHED = FIGURES / "quickstart.json"


def publish(folders: List[Path]) -> None:
    runs = [json.loads((folder / PUBLISHED.name).read_text(encoding="utf-8")) for folder in folders]
    write_json(PUBLISHED, runs)
    replace_block(QUICKSTART, lambda page: render_printed(runs))
    replace_block(SEEDS, lambda page: render_seeds(runs, page))


def render_printed(runs: List[Results]) -> str:
    return f"```\n{render_table(runs[0], 'output/quickstart')}\n```"


def render_seeds(runs: List[Results], page: str) -> str:
    form = "{:.3f}（{:.3f} 到 {:.3f}）" if is_chinese(page) else "{:.3f} ({:.3f} to {:.3f})"
    rows = []
    for results in runs:
        starts = [results[start] for start in STARTS.values()]
        losses = "{:.3f} -> {:.3f}".format(*results["valid_lm_loss"])
        accuracies = [form.format(start["accuracy"], *start["interval"]) for start in starts]
        pretrained = starts[0]
        flips, both = f"{pretrained['flip_rate']:.1%}", f"{pretrained['accuracy_both_orders']:.3f}"
        rows.append([str(results["seed"]), losses, *accuracies, f"{results[BASELINE]:.3f}", flips, both])
    return plain_rows(head_of(SEEDS, page), rows)


if __name__ == "__main__":
    publish([Path(word) for word in sys.argv[1:]])
