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
from side_by_side.peer.trainer import TrainingLog, read_rows
assert sys.argv[2] == "side_by_side.peer.trainer"
spec, out = json.loads(Path(sys.argv[3]).read_text()), Path(sys.argv[3]).parent
with open(out / "calls", "a") as file:
    file.write("once\\n")
if spec["seed"] == 13:
    sys.exit("error: an unlucky seed")
if spec["seed"] == 14:
    (out / "pid").write_text(str(os.getpid()))
    time.sleep(600)
rows = {name: read_rows(out / "rows" / f"{name}.jsonl") for name in ("train", "dev", "test")}
log = TrainingLog(out / "metrics.jsonl", len(rows["train"]), spec["batch_size"])
log.start_clock()
log.end_step(spec["epochs"] * -(-len(rows["train"]) // spec["batch_size"]))
log.tell_training(loss=0.5, learning_rate=spec["learning_rate"])
log.tell_evaluation(loss=0.5, accuracy=0.5)
(out / "versions.json").write_text(json.dumps({"torch": "2.0", "attention": "eager"}))
numpy.save(out / "logits.npy", numpy.array([[0, 2 * row[2] - 1] for row in rows["test"]], numpy.float32))
"""


def write_fake_peer(folder: Path) -> str:
    (folder / "fake_peer.py").write_text(PROGRAM)
    path = folder / "peer_python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {folder}/fake_peer.py "$@"\n')
    path.chmod(0o755)
    return str(path)
