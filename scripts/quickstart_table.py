"""Keep the results of finished quickstarts, several seeds, and show them in the pages.

python scripts/quickstart_table.py output/a output/b output/c
"""

import json
import sys
from pathlib import Path
from typing import List

from readme_block import QUICKSTART, ROOT, SEEDS, is_chinese, replace_block

from ernie_pair.checks.quickstart import STARTS, Results, render_table

PUBLISHED = ROOT / "scripts" / "results" / "quickstart.json"
HEAD = ("seed", "lm_loss", "pretrained", "from scratch", "flips", "both orders")
CHINESE_HEAD = ("随机种子", "lm_loss", "预训练权重", "随机初始化", "交换后改变", "两种顺序平均")


def publish(folders: List[Path]) -> None:
    """Keep the results of finished quickstarts in PUBLISHED and show them in the pages."""
    runs = [json.loads((folder / PUBLISHED.name).read_text(encoding="utf-8")) for folder in folders]
    PUBLISHED.parent.mkdir(exist_ok=True)
    PUBLISHED.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
    replace_block(QUICKSTART, lambda page: render_printed(runs))
    replace_block(SEEDS, lambda page: render_seeds(runs, page))


def render_printed(runs: List[Results]) -> str:
    """Return the output of the first run, as a block of text."""
    return f"```\n{render_table(runs[0], 'output/quickstart')}\n```"


def render_seeds(runs: List[Results], page: str) -> str:
    """Return the table of results with a row for each seed."""
    chinese = is_chinese(page)
    head = list(CHINESE_HEAD if chinese else HEAD)
    rows = [head, ["---"] * len(head), *(_row_of_seed(results, chinese) for results in runs)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)


def _row_of_seed(results: Results, chinese: bool) -> List[str]:
    pretrained, scratch = (results[start] for start in STARTS.values())
    form = "{:.3f}（{:.3f} 到 {:.3f}）" if chinese else "{:.3f} ({:.3f} to {:.3f})"
    accuracies = [
        form.format(measured["accuracy"], *measured["interval"]) for measured in (pretrained, scratch)
    ]
    losses = "{:.3f} -> {:.3f}".format(*results["valid_lm_loss"])
    flips, both = f"{pretrained['flip_rate']:.1%}", f"{pretrained['accuracy_both_orders']:.3f}"
    return [str(results["seed"]), losses, *accuracies, flips, both]


if __name__ == "__main__":
    publish([Path(word) for word in sys.argv[1:]])
