"""The table of the READMEs: the same classifier from three starts, from the JSON of the comparisons."""

import re
from statistics import mean
from typing import Dict, List

from data_tools.files.errors import counted
from ernie_pair.models.model_card import markdown_table
from proof.groups.peer import OURS, THEIRS
from proof.groups.scratch import STARTS
from proof.groups.starts import THREE
from proof.tables import Result, difference_of, shown_difference, shown_mean

ENGLISH = ["labelled pairs", "metric", "runs", *THREE, "continued - scratch", "shared characters", "majority"]
CHINESE = [
    *("标注句对", "指标", "次数", "再用句对文本预训练", "预训练", "随机初始化", "再预训练减随机"),
    *("共有字", "多数类"),
]
IN_ENGLISH, IN_CHINESE = {"accuracy": "accuracy", "auc": "AUC"}, {"accuracy": "准确率", "auc": "AUC"}
AUC_OF_A_CONSTANT = 0.5
FIRST = "LCQMC"  # the data set of the other comparisons
ROWS_AND_TRIALS = re.compile(r"([\d,]+) rows, (\d+) trials")
ROWS = re.compile(r"([\d,]+) rows of LCQMC")
TITLE = re.compile(r"(\w+), (all|[\d,]+) rows(?:, (\d+) epochs?,)?")


def summary_of(results: Dict[str, Dict[str, Result]], in_chinese: bool) -> str:
    """Return a row for each comparison of the three starts, and what these took.

    ``results``: {group: {name: result}}. Returns '' where there is no such comparison.
    """
    found = [each for each in results.get("starts", {}).values() if _is_of_three(each)]
    found.sort(key=lambda each: not each["title"].startswith(FIRST))
    if not found:
        return ""
    table = markdown_table(CHINESE if in_chinese else ENGLISH, [_row(each, in_chinese) for each in found])
    told = (_minutes, _with_own_flags, _beside_transformers)
    return "\n\n".join(filter(None, [table, *(tell(results, in_chinese) for tell in told)]))


def _is_of_three(result: Result) -> bool:
    return {*result["figures"]["models"]} == {*THREE}


def _minutes(results: Dict[str, Dict[str, Result]], in_chinese: bool) -> str:
    """Return how long the pretraining behind the comparisons took; '' where its runs are not there."""
    first, then = results.get("pretraining", {}).get("pretrained"), results.get("task", {}).get("lcqmc")
    if not first or not then:
        return ""
    pretrained, continued = (f"{each['figures']['training_seconds'] / 60:.0f}" for each in (first, then))
    cores = first["machine"]["cores"]
    if in_chinese:
        told = f"预训练用了 {pretrained} 分钟，用 LCQMC 句对的文本继续预训练用了 {continued} 分钟"
        return f"{told}，{cores} 个 CPU 核。"
    told = f"Pretraining took {pretrained} minutes, continuing with the texts of LCQMC {continued}"
    return f"{told} minutes, on {cores} CPU cores."


def _with_own_flags(results: Dict[str, Dict[str, Result]], in_chinese: bool) -> str:
    """Return what both starts reach with flags of their own; '' where they have not been searched."""
    found = results.get("scratch", {}).get("searched")
    if not found:
        return ""
    figures, rows = found["figures"], ROWS_AND_TRIALS.search(found["title"])
    continued, scratch = (shown_mean(figures["models"][start], "accuracy") for start in STARTS)
    gain = shown_difference(difference_of(found, *STARTS), "accuracy")
    if in_chinese:
        gain = gain.replace(" (", "（").replace(" to ", " 到 ").replace(")", "）")
        return (
            f"两种起点各搜索 {rows[2]} 次学习率、轮数和预热后，LCQMC {rows[1]} 行上再预训练 {continued}，"
            f"随机初始化 {scratch}，相差 {gain}。"
        )
    return (
        f"With the best rate, epochs and warm-up of {rows[2]} trials for each start, {rows[1]} rows of LCQMC "
        f"give {continued} (continued) and {scratch} (scratch): {gain}."
    )


def _beside_transformers(results: Dict[str, Dict[str, Result]], in_chinese: bool) -> str:
    """Return what both sides reach from the same weights, and how fast; '' where one is not there."""
    sides = [results.get("peer", {}).get(name) for name in (OURS, THEIRS)]
    if not all(sides):
        return ""
    (ours, our_speed), (theirs, their_speed) = (
        (shown_mean(figures["models"][name], "accuracy"), f"{mean(figures['pairs_per_second']):,.0f}")
        for name, figures in ((side["name"], side["figures"]) for side in sides)
    )
    rows, threads = ROWS.search(sides[0]["title"])[1], sides[0]["figures"]["threads"]
    if in_chinese:
        return (
            f"同样的权重、句对和参数（LCQMC {rows} 行，float32，{threads} 线程）："
            f"transformers 的 Trainer 准确率 {theirs}，每秒训练 {their_speed} 对；"
            f"本包 {ours}，每秒 {our_speed} 对。"
        )
    return (
        f"From the same weights, with the same pairs and flags ({rows} rows of LCQMC, float32, "
        f"{counted(threads, 'thread')}), transformers' Trainer reaches {theirs} at {their_speed} pairs/s of "
        f"training, this package {ours} at {our_speed}."
    )


def _row(result: Result, in_chinese: bool) -> List[str]:
    figures = result["figures"]
    metric = figures.get("chosen_by", "accuracy")
    gain = shown_difference(difference_of(result, "continued", "scratch"), metric)
    if in_chinese:
        gain = gain.replace(" (", "（").replace(" to ", " 到 ").replace(")", "）")
    return [
        _title(result["title"], in_chinese),
        (IN_CHINESE if in_chinese else IN_ENGLISH)[metric],
        str(len(result["seeds"])),
        *(shown_mean(figures["models"][start], metric) for start in THREE),
        gain,
        f"{figures['overlap'][metric]:.4f}",
        f"{figures['majority'] if metric == 'accuracy' else AUC_OF_A_CONSTANT:.4f}",
    ]


def _title(title: str, in_chinese: bool) -> str:
    data_set, rows, epochs = TITLE.match(title).groups()
    if in_chinese:
        told = f"{data_set}，{'全部' if rows == 'all' else f'{rows} 行'}"
        return f"{told}，{epochs} 轮" if epochs else told
    told = f"{data_set}, {rows} rows"
    return f"{told}, {counted(int(epochs), 'epoch')}" if epochs else told
