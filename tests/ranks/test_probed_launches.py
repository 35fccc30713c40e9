"""--processes auto and NPROC=auto on this machine: a real probe of tiny models, and the runs that follow."""

import os
import subprocess
import sys

import pytest
import tiny_pair
import tiny_pretrain
from places import ROOT
from run_files import events

from ernie_pair.runtime.cpu import share_of

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(share_of(0, 1).threads < 2, reason="one core leaves nothing to choose"),
]


def run(folder, *words, **environment):
    """Run words in a folder, with its own cache and no thread count set; return the standard error."""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    places = {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "kept")}
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env={**kept, **places, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def steps_of(output):
    """Return (step, samples consumed) of every training line of a run."""
    return [(event["step"], event["consumed_samples"]) for event in events(output, "train")]


def test_pair_training_is_probed_once_and_the_result_is_reused(tmp_path):
    tiny_pair.write_model(tmp_path / "model")
    for name, rows in (("train.tsv", 90), ("dev.tsv", 20)):
        tiny_pair.write_pairs(tmp_path / name, rows, seed=rows)
    flags = ["--model_name_or_path=model", "--train_file=train.tsv", "--dev_file=dev.tsv", "--device=cpu"]
    flags.append("--model_type=ernie_gram")
    sizes = ["--batch_size=8", "--max_steps=2", "--logging_freq=1", "--max_seq_len=24", "--from_scratch=true"]
    launch = [sys.executable, "-m", "ernie_pair", "launch", "train", "--processes=auto", *flags, *sizes]
    said = run(tmp_path, *launch, "--output_dir=first")
    assert "  1 process x " in said and "  2 processes x " in said and " ms for a step of a stand-in" in said
    again = run(tmp_path, *launch, "--output_dir=second")
    assert "(measured at an earlier start; " in again and "  1 process x " not in again
    for output in ("first", "second"):
        assert steps_of(tmp_path / output) == [(1, 8), (2, 16)]


def test_the_pretraining_script_probes_too(tmp_path):
    model = tiny_pretrain.write_model(tmp_path / "model")
    tiny_pretrain.write_corpus(tmp_path / "data", model)
    scripts = ROOT / "scripts"
    (tmp_path / "run.sh").write_text((scripts / "run_pretrain_static.sh").read_text())
    (tmp_path / "environment.sh").write_text(f"ROOT={scripts.parent}\nDEVICE=cpu\nPY={sys.executable}\n")
    sizes = ["--max_seq_len=32", "--micro_batch_size=4", "--global_batch_size=8", "--max_steps=2"]
    others = ["--from_scratch=true", "--logging_freq=1", "--num_workers=1", "--split=90,10,0"]
    places = {"MODEL": str(model), "DATA": str(tmp_path / "data"), "OUTPUT": "out", "NPROC": "auto"}
    said = run(tmp_path, "sh", "run.sh", *sizes, *others, **places)
    assert "  1 process x " in said and "--processes auto: " in said
    assert steps_of(tmp_path / "out") == [(1, 8), (2, 16)]


def test_automatic_nproc_on_several_machines_is_refused(tmp_path):
    script, environment = ROOT / "scripts" / "run_pretrain_static.sh", tmp_path / "environment.sh"
    (tmp_path / "run.sh").write_text(script.read_text())
    environment.write_text('DEVICE=cpu\nfail() {\n    echo "error: $1" >&2\n    exit 2\n}\n')
    done = subprocess.run(
        ["sh", "run.sh"],
        cwd=tmp_path,
        env={**os.environ, "NPROC": "auto", "NNODES": "2", "MASTER": "a:1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "error: NPROC=auto measures one machine, not NNODES=2" in done.stderr
