"""Keep the figures of a comparison side by side; show all ratios in docs, the main ones in READMEs and drawn.

python scripts/side_by_side_table.py side_by_side.json [MORE.json ...]

Several files hold different cases, or lanes of a case, measured on one machine. Earlier figures of that
processor with those instructions give way to them; those of others stay beside them.
"""

import json
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any, Dict, Sequence

from bench_side_by_side import draw
from readme_block import PAGES, ROOT, SIDE_BY_SIDE, head_of, in_words, is_chinese, render_rows, replace_block

from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import write_json

PUBLISHED = ROOT / "scripts" / "results" / "side_by_side.json"
PICTURE = ROOT / "docs" / "pictures" / "side_by_side.png"
OF_SENTENCES = ("embed ", "rerank ", "serve ", "cold embed ")  # cases whose peer is sentence-transformers


def publish(files: Sequence[Path]) -> None:
    """Keep the figures of ``files``, of one machine, in PUBLISHED and show all. Raises InputError."""
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    cases: Dict[str, Any] = {}
    for case in [case for part in parts for case in part["cases"]]:
        so_far = cases.setdefault(case["name"], {**case, "lanes": [], "ratios": []})
        so_far.update({of: so_far[of] + case[of] for of in ("lanes", "ratios")})
    figures = {"machine": parts[0]["machine"], "cases": list(cases.values())}
    for file, part in zip(files, parts):
        if part["machine"] != figures["machine"]:
            raise InputError(f"{file}: measured on another machine than {files[0]}; measure all cases on one")
    of = itemgetter("processor", "instructions")
    machines = json.loads(PUBLISHED.read_text(encoding="utf-8"))["machines"] if PUBLISHED.exists() else []
    machines = [each for each in machines if of(each["machine"]) != of(figures["machine"])] + [figures]
    machines.sort(key=lambda each: each["machine"]["instructions"])
    machines.sort(key=lambda each: each["machine"]["processor"], reverse=True)
    PUBLISHED.parent.mkdir(exist_ok=True)
    write_json(PUBLISHED, {"machines": machines})
    draw(PICTURE, [main_ratios(each["machine"], case) for each in machines for case in each["cases"]])
    replace_block(SIDE_BY_SIDE, lambda page: "\n\n".join(render_machine(each, page) for each in machines))


def is_main(ours: str, other: str) -> bool:
    """Return whether fused kernels meet the peer's best settings in one precision, or whole commands meet."""
    is_whole = other in ("peer service", "peer command") and "exported" not in ours
    return is_whole or ours.startswith("fused ") and other == ours.replace("fused", "peer")


def main_ratios(machine: Dict[str, Any], case: Dict[str, Any]) -> Dict[str, Any]:
    """Return a case with its main ratios alone, in the words of the README, for the picture."""
    ratios = []
    for ratio in case["ratios"]:
        if is_main(ratio["ours"], ratio["other"]):
            _, ours, other = names_of(case["name"], ratio, PAGES[0])
            ratios.append({**ratio, "ours": ours, "other": other})
    name = in_words(SIDE_BY_SIDE, case["name"], PAGES[0])
    return {"name": f"{machine['instructions']}, {name}", "ratios": ratios}


def names_of(case: str, ratio: Dict[str, Any], page: str) -> Sequence[str]:
    """Return in words a case, and the two sides of one of its ratios."""
    other = ratio["other"]
    other = other.replace("peer ", "peer of sentences ") if case.startswith(OF_SENTENCES) else other
    return [in_words(SIDE_BY_SIDE, text, page) for text in (case, ratio["ours"], other)]


def render_machine(figures: Dict[str, Any], page: str) -> str:
    """Return a machine in words, and its table of ratios: of medians, and the range over the rounds.

    A README shows only the main ones. Paddle's own kernels are shown only as what the fused ones are compared
    with.
    """

    def is_shown(ours: str, other: str) -> bool:
        if page in PAGES:
            return is_main(ours, other)
        return not ours.startswith("plain") and not (
            ours.startswith("exported") and other.startswith("plain")
        )

    def cell(ratio) -> str:
        form = (
            "{ratio:.2f}（{low:.2f} 到 {high:.2f}）" if chinese else "{ratio:.2f} ({low:.2f} to {high:.2f})"
        )
        return form.format(**ratio) if ratio else ""

    chinese = is_chinese(page)
    facts = ((in_words("machine", name, page), value) for name, value in figures["machine"].items() if value)
    machine = ("，" if chinese else ", ").join(f"{name} {value}" for name, value in facts)
    rows = [
        [
            *names_of(case["name"], ratio, page),
            *(cell(ratio[clock]) for clock in ("cpu", "wall")),
        ]
        for case in figures["cases"]
        for ratio in case["ratios"]
        if is_shown(ratio["ours"], ratio["other"])
    ]
    return f"{machine}\n\n{render_rows(head_of(SIDE_BY_SIDE, page), rows)}"


if __name__ == "__main__":
    publish(list(map(Path, sys.argv[1:])))
