"""A peer's Python without torch: it answers as if it had it, and "trains" by looking at the label's sign."""

import sys
from pathlib import Path

PROGRAM = """
import json, os, sys, time
from pathlib import Path
if sys.argv[1] == "-c":
    print("2.0 4.0 1.0 False")
    sys.exit()
import numpy
assert sys.argv[2:4] == ["-m", "side_by_side.peer.trainer"]
spec, out = json.loads(Path(sys.argv[4]).read_text()), Path(sys.argv[4]).parent
with open(out / "calls", "a") as file:
    file.write("once\\n")
if spec["seed"] == 13:
    sys.exit("error: an unlucky seed")
if spec["seed"] == 14:
    (out / "pid").write_text(str(os.getpid()))
    time.sleep(600)
rows = {name: list(map(json.loads, open(out / "rows" / f"{name}.jsonl"))) for name in ("train", "test")}
event = {"step": 9, "consumed_samples": spec["epochs"] * len(rows["train"]), "loss": 0.5}
lines = [{"split": "train", "samples_per_second": 9.0, **event}, {"split": "valid", "accuracy": 0.5, **event}]
(out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
(out / "versions.json").write_text(json.dumps({"torch": "2.0", "attention": "eager"}))
numpy.save(out / "logits.npy", numpy.array([[0, 2 * row[2] - 1] for row in rows["test"]], numpy.float32))
"""


def write_fake_peer(folder: Path, program: str = PROGRAM) -> str:
    (folder / "fake_peer.py").write_text(program)
    path = folder / "peer_python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/fake_peer.py "$@"\n')
    path.chmod(0o755)
    return str(path)
