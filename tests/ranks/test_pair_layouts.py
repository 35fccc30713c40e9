"""Every layout of a global batch makes the updates of one process, and any other can resume from it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import ROOT, SUPPORT
from run_pair_layouts import run_job
from tiny_pair_job import write_files

from ernie_pair.train.process_group import ProcessGroup
from ernie_pair.weights.weight_files import from_safetensors

pytestmark = pytest.mark.ranks

SCRIPT = Path(__file__).with_name("run_pair_layouts.py")
UPDATES = 6
BOUND = 2e-6  # float32 rounding, magnified by AdamW's division in the first updates
PLAIN = {"dropout": 0.0, "weight_decay": 0.3}
SCALED = {"use_amp": True, "amp_dtype": "float32", "init_loss_scaling": 8.0, "incr_every_n_steps": 2}
VARIANTS = {
    "plain": {},
    "weighted": {"class_weights": "1,2.5", "bucket": False},
    "adversarial": {"fgm_epsilon": 0.5},
    "clipped": {"grad_clip": 0.05},
    "scaled": {**SCALED, "grad_clip": 0.1},
    "skipping": {"on_nan": "skip"},
    "averaged": {"symmetric": "average"},
    "consistent": {"symmetric": "consistency", "symmetric_alpha": 0.5, "class_weights": "1,2.5"},
}
INFINITE = {"scaled": [2], "skipping": [2, 5]}
NO_FGM = [name for name in VARIANTS if name != "adversarial"]
LAYOUTS = {"8": {"batch_size": 8}, "4x2": {"batch_size": 4, "gradient_accumulation_steps": 2}}
CURVES = ("loss", "learning_rate", "skipped_updates", "loss_scale", "accuracy")


def launch(folder, processes, jobs, out):
    """{name: [the final arrays of each rank]}, all jobs in one launch."""
    path = folder / f"{out}.json"
    path.write_text(json.dumps({"folder": str(folder), "jobs": jobs}))
    done = subprocess.run(
        [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(processes)]
        + ["--log_dir", str(folder / f"{out}_log"), str(SCRIPT), str(path), str(folder / out)],
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{SUPPORT}:{ROOT}"},
    )
    told = [log.read_text()[-1500:] for log in sorted((folder / f"{out}_log").glob("workerlog.*"))]
    assert done.returncode == 0, "\n".join(told) or done.stderr
    return {
        name: [dict(np.load(f"{folder / out}.{name}.{rank}.npz")) for rank in range(processes)]
        for name in jobs
    }


def job_of(variant, **more):
    flags = {**PLAIN, **VARIANTS[variant], **more.pop("flags", {})}
    return {"flags": flags, "updates": UPDATES, "infinite": INFINITE.get(variant, []), **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("layouts"))


@pytest.fixture(scope="module")
def one(folder):
    """One process without accumulation: {variant: its final arrays}."""
    return {
        name: run_job(folder, ProcessGroup(), str(folder / f"one.{name}"), **job_of(name))
        for name in VARIANTS
    }


@pytest.fixture(scope="module")
def two(folder, one):
    """Two processes in each layout, and with sharded state, all in one launch."""
    jobs = {}
    for name in VARIANTS:
        for layout, flags in LAYOUTS.items():
            jobs[f"{name}-{layout}"] = job_of(name, flags=flags)
    sharded = {**LAYOUTS["4x2"], "sharding": "stage2"}
    for name in NO_FGM:
        jobs[f"{name}-4x2-stage2"] = job_of(name, flags=sharded)
    for name in ("clipped", "scaled"):
        jobs[f"{name}-8-stage2"] = job_of(name, flags={**LAYOUTS["8"], "sharding": "stage2"})
    for name in ("plain", "scaled"):
        jobs[f"{name}-4x2-offload"] = job_of(name, flags=sharded, offload=True)
    for name, flags in (("8", LAYOUTS["8"]), ("4x2", LAYOUTS["4x2"]), ("stage2", sharded)):
        jobs[f"plain-{name}-recompute"] = job_of("plain", flags={**flags, "use_recompute": True})
    jobs["plain-4x2-read together"] = job_of("plain", flags={**LAYOUTS["4x2"], "sync_freq": 100})
    dropout = {"dropout": 0.1, "rdrop_alpha": 1.0, **LAYOUTS["4x2"]}
    jobs["rdrop-4x2"] = {"flags": dropout, "updates": UPDATES}
    half = str(folder / "half" / "checkpoints" / "step_00000003")
    run_job(folder, ProcessGroup(), str(folder / "half"), {**PLAIN, **VARIANTS["clipped"]}, updates=3)
    resumed = {"first": 4, "resume": half}
    jobs["clipped-4x2-resumed"] = job_of("clipped", flags=LAYOUTS["4x2"], **resumed)
    jobs["clipped-4x2-stage2-resumed"] = job_of("clipped", flags=sharded, **resumed)
    jobs["clipped-4x2-offload-resumed"] = job_of("clipped", flags=sharded, offload=True, **resumed)
    return launch(folder, 2, jobs, "two")


def of_one(one, two):
    """(name, final arrays of the ranks, those of one process) of the jobs without dropout."""
    return [(name, ranks, one[name.split("-")[0]]) for name, ranks in two.items() if name[:5] != "rdrop"]


def difference(found, wanted):
    return max(np.abs(found[name] - array).max() for name, array in wanted.items() if "." in name)


def test_every_layout_gives_the_weights_of_one_process(one, two):
    found = {name: difference(ranks[0], wanted) for name, ranks, wanted in of_one(one, two)}
    print("".join(f"\n{name:<36}{found[name]:.1e}" for name in found))
    assert max(found.values()) < BOUND
    moved = one["plain"]["ernie.embeddings.word_embeddings.weight"]
    others = [one[name]["ernie.embeddings.word_embeddings.weight"] for name in one if name != "plain"]
    assert min(np.abs(moved - other).max() for other in others) > 100 * BOUND


def test_all_processes_are_bit_identical(two):
    for name, (first, second) in two.items():
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[key], second[key], equal_nan=True) for key in first), name


def test_every_layout_reports_the_metrics_of_one_process(one, two):
    for name, (found, _), wanted in of_one(one, two):
        first = 3 if name.endswith("resumed") else 0
        for curve in (*CURVES, "gradient_norm", "adversarial_loss"):
            if curve in wanted:
                np.testing.assert_allclose(found[curve], wanted[curve][first:], rtol=1e-4, err_msg=name)


def test_one_infinite_gradient_makes_all_skip_the_update(two):
    for layout in ("8", "4x2", "4x2-stage2"):
        assert two[f"scaled-{layout}"][0]["loss_scale"].tolist() == [8, 4, 4, 8, 8, 16]
        assert two[f"scaled-{layout}"][0]["skipped_updates"].tolist() == [0, 1, 1, 1, 1, 1]
        assert two[f"skipping-{layout}"][0]["skipped_updates"].tolist() == [0, 1, 1, 1, 2, 2]
    rates = two["skipping-8"][0]["learning_rate"]
    assert rates[1] == rates[2] < rates[3]


def state_of(folder):
    (step,) = (folder / "checkpoints").iterdir()
    files = {path.name: from_safetensors(path.read_bytes(), "") for path in step.glob("*.safetensors")}
    return files.pop("model.safetensors"), files


@pytest.mark.parametrize("name", ["plain-4x2-stage2", "scaled-8-stage2", "scaled-4x2-offload"])
def test_each_process_writes_its_own_shard_of_optimizer_state(folder, two, name):
    _, parts = state_of(folder / f"two.{name}")
    assert sorted(parts) == [f"optimizer-0000{part}-of-00002.safetensors" for part in (0, 1)]
    first, second = (parts[name] for name in sorted(parts))
    assert not first.keys() & second.keys()
    sizes = [sum(array.size for array in part.values()) for part in (first, second)]
    assert max(sizes) < 1.3 * min(sizes)
    _, whole = state_of(folder / f"one.{name.split('-')[0]}")
    (wanted,) = whole.values()
    found = {**first, **second}
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-3, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["clipped-8-stage2", "plain-4x2-offload", "scaled-4x2"])
def test_one_process_resumes_from_the_state_of_several(folder, one, two, name):
    variant = name.split("-")[0]
    job = {**job_of(variant), "updates": UPDATES + 2}
    whole = run_job(folder, ProcessGroup(), str(folder / f"{name}.whole"), **job)
    resume = str(folder / f"two.{name}" / "checkpoints" / f"step_{UPDATES:08d}")
    out = str(folder / f"{name}.rest")
    rest = run_job(folder, ProcessGroup(), out, **{**job, "first": UPDATES + 1, "resume": resume})
    assert difference(rest, whole) < BOUND
    assert rest["learning_rate"].tolist() == whole["learning_rate"][UPDATES:].tolist()
