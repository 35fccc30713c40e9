"""Keep the figures of a comparison side by side and show its ratios: all in docs, some in the READMEs.

python scripts/side_by_side_table.py side_by_side.json [MORE.json ...]

Several files hold different cases, measured on one machine.
"""

import json
import sys
from pathlib import Path
from typing import Any, Dict, List, Sequence

from readme_block import PAGES, ROOT, SIDE_BY_SIDE, is_chinese, replace_block
from side_by_side.report import render_rows

from data_tools.files.errors import InputError

PUBLISHED = ROOT / "scripts" / "results" / "side_by_side.json"
HEAD = ("case", "ernie-pair", "compared with", "speedup (CPU time)", "speedup (wall clock)")
CHINESE_HEAD = ("用例", "本项目", "对照", "CPU 时间之比", "墙钟时间之比")
# What the pages write for names in the figures: first in English, then in Chinese; in this order.
WORDS = (
    ("2 processes of 1 thread, 1 process of 2: ", None, "2 个单线程进程对 1 个双线程进程："),
    ("2 processes", None, "2 个进程"),
    ("1 process", None, "1 个进程"),
    ("train pairs ", None, "句对训练 "),
    ("pretrain ", None, "预训练 "),
    ("ask ", "predict ", "预测 "),
    (", batch ", None, "，批大小 "),
    (", ", None, "，"),
    (" pairs", None, " 对"),
    (" x ", None, " × "),
    ("peer defaults", "transformers defaults", "transformers 默认设置"),
    ("peer ", "transformers ", "transformers "),
    ("plain ", None, "Paddle 算子 "),
    ("fused ", None, "融合算子 "),
    ("exported ", None, "导出的 "),
)
CHINESE_FACTS = {"processor": "处理器", "cores": "核数", "threads": "线程数", "peer": "对照"}


def publish(files: Sequence[Path]) -> None:
    """Keep the figures of ``files`` in PUBLISHED and show them in the pages.

    Raises InputError if they were measured on different machines.
    """
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    figures = {"machine": found[0]["machine"], "cases": [case for one in found for case in one["cases"]]}
    for file, one in zip(files, found):
        if one["machine"] != figures["machine"]:
            raise InputError(f"{file}: measured on another machine than {files[0]}; measure all cases on one")
    PUBLISHED.parent.mkdir(exist_ok=True)
    PUBLISHED.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    replace_block(SIDE_BY_SIDE, lambda page: render_page(figures, page))


def render_page(figures: Dict[str, Any], page: str) -> str:
    """Return the machine in words, and the table of ratios: of medians, and the range over the rounds.

    A README shows only the main ones: our fused kernels beside the peer's best settings.
    """
    is_shown = _is_main if page in PAGES else _is_shown
    chinese = is_chinese(page)
    rows: List[List[str]] = [
        [
            *(_in_words(text, chinese) for text in (case["name"], ratio["ours"], ratio["other"])),
            *(_cell(ratio[clock], chinese) for clock in ("cpu", "wall")),
        ]
        for case in figures["cases"]
        for ratio in case["ratios"]
        if is_shown(ratio["ours"], ratio["other"])
    ]
    return f"{_machine(figures, chinese)}\n\n{render_rows(CHINESE_HEAD if chinese else HEAD, rows)}"


def _machine(figures: Dict[str, Any], chinese: bool) -> str:
    names = CHINESE_FACTS if chinese else {"peer": "compared with"}
    facts = (f"{names.get(name, name)} {value}" for name, value in figures["machine"].items() if value)
    return ("，" if chinese else ", ").join(facts)


def _in_words(text: str, chinese: bool) -> str:
    """Return the name of a case or of a lane in the language of the page."""
    for recorded, english, translated in WORDS:
        text = text.replace(recorded, translated if chinese else english or recorded)
    return text


def _is_main(ours: str, other: str) -> bool:
    """Return whether the READMEs show a ratio: like with like, in one precision."""
    return ours.startswith("fused ") and other == ours.replace("fused", "peer")


def _is_shown(ours: str, other: str) -> bool:
    """Return whether the pages show a ratio; all of them are in PUBLISHED.

    Paddle's own kernels are only what the fused ones are compared with.
    """
    return not ours.startswith("plain") and not (ours.startswith("exported") and other.startswith("plain"))


def _cell(ratio, chinese: bool) -> str:
    form = "{ratio:.2f}（{low:.2f} 到 {high:.2f}）" if chinese else "{ratio:.2f} ({low:.2f} to {high:.2f})"
    return form.format(**ratio) if ratio else ""


if __name__ == "__main__":
    publish(list(map(Path, sys.argv[1:])))
