"""Versions of a pipeline: OUT is v1; data that have changed since make OUT/v2, OUT/v3, ... beside it.

A version is a pipeline of its own that begins from the one before it: from what that has pretrained, where
the text is the same, and with each of its rows in the file that it was in, so that the test pairs only grow.
It is compared with the one before on its test pairs. OUT/current leads to the exported model that is to be
served: to a newer one if it is better there, or once it is asked for with --use.
"""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

from data_tools.text.table_writer import table_writer
from ernie_pair.checks.pipeline_inputs import RECORD, REPORT, PipelineConfig, build_record
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.arrays import sha256_of_file
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.results import read_record
from ernie_pair.core.progress import say
from ernie_pair.evaluation.scorer import load
from ernie_pair.pairs.data.pair_file import Pairs

CURRENT, EXPORTED, COMPARED, FLIPS = "current", "exported", "compared", "flips.xlsx"


def versions_in(folder: Path) -> dict[int, Path]:
    """Return {number: folder} of the versions of a pipeline, its own first; {} where that is not done."""
    if not _is_finished(folder):
        return {}
    found = {int(path.name[1:]): path for path in folder.glob("v*") if path.name[1:].isdecimal()}
    return {1: folder, **{n: found[n] for n in sorted(found) if n > 1 and (found[n] / RECORD).is_file()}}


def served_in(folder: Path) -> Optional[Path]:
    """Return the version that OUT/current leads to, if it has its models."""
    there = os.path.dirname(os.path.realpath(folder / CURRENT))
    versions = (path for path in versions_in(folder).values() if os.path.realpath(path) == there)
    return next((path for path in versions if (path / "pair").is_dir() and (path / EXPORTED).is_dir()), None)


def name_of(version: Path) -> str:
    """Return v1 for the folder of a pipeline, else its own name."""
    return version.name if version in versions_in(version.parent).values() else "v1"


def version_of(config: PipelineConfig) -> PipelineConfig:
    """Return the pipeline that ``config`` asks for: its own, or the version that its data are, or will be.

    Raises InputError where the version before it was edited, or where another one was begun with other data.
    """
    top = Path(config.output_dir)
    made = {} if config.fresh_start else versions_in(top)
    now = _hashes(build_record(config, True).about({})["inputs"])
    same = [number for number, folder in made.items() if _hashes_of(folder) == now]
    if not made or 1 in same:
        return config
    number = same[0] if same else max(made) + _is_finished(made[max(made)])
    if not same and number in made:
        aside = shlex.join(["mv", str(made[number]), f"{top}.begun-v{number}"])
        raise InputError(
            f"{made[number]} was begun with other data; bring these back to go on, or put it aside: {aside}"
        )
    before = made[max(n for n in made if n < number and _is_finished(made[n]))]
    _check_unedited(before)
    version = replace(config, output_dir=str(top / f"v{number}"), keep=str(before))
    if config.model_name_or_path != _start_of(top):  # another start is asked for, and is taken
        return version
    own = {_start_of(top), *(str(folder / "dynamic") for folder in made.values())}
    kin = [folder for n, folder in made.items() if n < number and _start_of(folder) in own][-1]
    start, is_text_new = kin / "dynamic", _hashes_of(kin).get("input_path") != now.get("input_path")
    known = _start_of(kin)
    return replace(
        version,
        model_name_or_path=str(start) if start.is_dir() else known or config.model_name_or_path,
        pretrain=bool(config.input_path) and is_text_new if start.is_dir() or known else config.pretrain,
    )


def _start_of(folder: Path) -> str:
    return read_record(folder / RECORD)["settings"]["flags"]["model_name_or_path"]


def _is_finished(folder: Path) -> bool:
    return (folder / REPORT).is_file() and bool(read_record(folder / RECORD).get("outputs"))


def _hashes(inputs: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, list[str]]:
    """Return {flag: the hashes of its data}; a file that was moved is the same, and a start is no data."""
    hashes = {flag: [sha256 for _, sha256 in files] for flag, files in inputs.items() if files}
    hashes.pop("model_name_or_path", None)
    hashes.pop("keep", None)
    return hashes


def _hashes_of(folder: Path) -> dict[str, list[str]]:
    return _hashes(read_record(folder / RECORD).get("inputs") or {})


def _check_unedited(folder: Path) -> None:
    """Raise InputError for files of a split that are not as they were made: rows would move."""
    made = read_record(folder / "pairs" / ".train.jsonl.made.json").get("outputs", {})
    for name, sha256 in made.items():
        path = folder / "pairs" / name
        if not path.is_file() or sha256_of_file(path) != sha256:
            raise InputError(
                f"{path} was changed since it was made, and its rows are to stay where they are; put it "
                "back, or begin again in another --output_dir"
            )


def write_flips(before: Path, folder: Path, pairs: Pairs, names: Sequence[str]) -> int:
    """Write which ``pairs`` two versions decide otherwise, with the scores of both; return how many."""
    texts = list(zip(pairs.left, pairs.right))
    old, new = (load(version / EXPORTED).predict(texts) for version in (before, folder))
    final = folder / COMPARED / FLIPS
    columns = ("text_a", "text_b", "label", "before", "now", "score_before", "score_now")
    labels = [names[number] for number in pairs.known_labels]
    scores = ([""] * len(texts) if one.scores is None else one.scores.tolist() for one in (old, new))
    decided = zip(texts, labels, old.labels or (), new.labels or (), *scores)
    rows = [(*both, label, *found) for both, label, *found in decided if found[0] != found[1]]
    with published(final) as (draft,), table_writer(draft, final, columns) as write:
        for row in rows:
            write(row)
    return len(rows)


def describe_change(found: Mapping[str, Any]) -> tuple[str, bool]:
    """Return what models.json of ``compare models`` says of the newer model, and whether it is better."""
    old, new = found["models"][:2]
    low, high = new["difference_interval"]
    worth = "better" if low > 0 else "worse" if high < 0 else "no clear difference"
    line = f"{new['name']} beside {old['name']} on the same {found['rows']} test pairs: accuracy "
    line += f"{new['difference']:+.4f} ({low:+.4f} to {high:+.4f}): {worth}"
    return line, low > 0


def link_current(folder: Path, version: Path) -> None:
    """Have OUT/current lead to the exported model of ``version``. Raises InputError where it is no link."""
    link, target = folder / CURRENT, os.path.relpath(version / EXPORTED, folder)
    if link.exists() and not link.is_symlink():
        raise InputError(f"{link} is not a link of a pipeline; move it away, and run the same command again")
    draft = link.with_name(f".{CURRENT}.new")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    os.replace(draft, link)


def describe_current(folder: Path) -> list[str]:
    """Return a line on where OUT/current leads, and how that is changed; none of one version alone."""
    link = folder / CURRENT
    if not link.is_symlink() or len(versions_in(folder)) < 2:
        return []
    again = f"ernie-pair pipeline --output_dir {shlex.quote(str(folder))} --use v1"
    return [f"current   {link} leads to {os.readlink(link)}; to lead elsewhere: {again}"]


def use(config: PipelineConfig) -> dict[str, Any]:
    """Have OUT/current lead to the version --use. Raises InputError for one that is not there."""
    folder = Path(config.output_dir)
    if name_of(folder) != "v1":
        raise InputError(f"--use {config.use}: {folder} is a version; give --output_dir {folder.parent}")
    made = {f"v{number}": path for number, path in versions_in(folder).items() if _is_finished(path)}
    if config.use not in made or not (made[config.use] / EXPORTED).is_dir():
        there = ", ".join(made) or "none"
        raise InputError(f"--use {config.use}: {folder} has no such version with a model (there: {there})")
    link_current(folder, made[config.use])
    say(f"{folder / CURRENT} leads to {made[config.use] / EXPORTED}")
    return {"model": folder / CURRENT}
