"""Files of the user under the names that a run itself uses, and the proof that they are still there."""

import os
from pathlib import Path

OF_ANY_RUN = """
    metrics.tmp metrics.jsonl.draft .metrics.jsonl-0123456789abcdef01234567.draft run.json.draft
    .model_last .model_last-0123456789abcdef01234567 vdl/mine vdl/run/vdlrecords.1.log
    ranks/mine log/mine checkpoints/.tmp-mine checkpoints/.trash-mine checkpoints/mine
    checkpoints/.tmp-step_00000002-0123456789abcdef checkpoints/.tmp-step_00000002-0123456789abcdef01234567
""".split()
OF_PAIRS = """
    best-notes.txt best-mine best-accuracy-1 .tmp-best-mine .trash-best-mine cache/mine
    .tmp-best-accuracy-0.5000-0123456789abcdef01234567
""".split()
OF_PRETRAINING = ["model_3", "model_mine", ".tmp-model_3", ".trash-model_3", "model_6/mine"]
KINDS = ("file", "folder", "link to a file", "link to a folder")


def plant(output: Path, names, kind: str) -> None:
    """Put something of ``kind`` under each of ``names``; links lead to ``output``.precious/."""
    precious = output.with_name(f"{output.name}.precious")
    (precious / "folder").mkdir(parents=True, exist_ok=True)
    for path in (
        precious / "file",
        precious / "folder" / "vdlrecords.2.log",
        precious / "folder" / "config.json",
    ):
        path.write_text("precious")
    for name in names:
        path = output / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "file":
            path.write_text(f"mine: {name}")
        elif kind == "folder":
            (path / "deep").mkdir(parents=True)
            (path / "deep" / "config.json").write_text(f"mine: {name}")
        else:
            path.symlink_to(precious / kind.rpartition(" ")[2])


def content(output: Path, names):
    """{path: what is there} of all that was planted, and of what the links lead to."""
    places = [output.with_name(f"{output.name}.precious"), *(output / name for name in names)]
    return {str(path): _what(path) for place in places for path in (place, *sorted(place.rglob("*")))}


def _what(path: Path):
    if path.is_symlink():
        return "link", os.readlink(path)
    return ("file", path.read_bytes()) if path.is_file() else ("folder", path.is_dir())
