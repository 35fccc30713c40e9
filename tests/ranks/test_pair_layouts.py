"""Every layout of a global batch makes the updates of one process, and any other can resume from it."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from group_sharding_on_cpu import group_sharding_on_cpu
from launched import launch
from tiny_pair_job import run, tiny_job, weights, write_files

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.world import World, launched_world
from ernie_pair.training.process_group import ProcessGroup, join_process_group
from ernie_pair.weights.weight_files import from_safetensors

pytestmark = pytest.mark.ranks

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
LAYOUTS = {"8": {"batch_size": 8}, "4x2": {"batch_size": 4, "gradient_accumulation_steps": 2}}
CURVES = ("loss", "learning_rate", "skipped_updates", "loss_scale", "accuracy")


def run_job(folder, group, out, flags, updates=UPDATES, first=1, resume=None, infinite=()):
    """The weights, and the metrics of updates ``first`` to ``updates``, after the checkpoint ``resume``.

    In those that are ``infinite`` a gradient of the last rank is. The state at the end is saved in ``out``.
    """
    sharded = flags.get("sharding", "none") != "none"
    with group_sharding_on_cpu() if sharded else nullcontext():
        flags = {**flags, "device": "gpu"} if sharded else flags
        tiny = tiny_job(folder, group, consumed=(first - 1) * 16, **flags)
        if resume:
            tiny.job.restore(Checkpoint(Path(resume)))
        forward, metrics = tiny.job.parallel.forward, []
        for step in range(first, updates + 1):
            is_poisoned = step in infinite and group.rank == group.size - 1
            tiny.job.parallel.forward = InfiniteGradient(forward) if is_poisoned else forward
            metrics += run(tiny, step, first=step)
        tiny.job.parallel.forward = forward
        checkpoints = Checkpoints(Path(out), World(group.rank, group.size), group.all_reduce)
        state = TrainState(updates, updates * 16, skipped_updates=tiny.job.skipped_updates)
        checkpoints.save(state, {}, tiny.job.state_files(), {})
        checkpoints.close()
    curves = {name: np.array([values[name] for values in metrics]) for name in metrics[0]}
    valid = {f"valid {name}": np.array(value) for name, value in tiny.job.evaluate("valid").items()}
    return {**curves, **valid, **weights(tiny.job)}


class InfiniteGradient:
    def __init__(self, forward):
        self.forward, self.no_sync = forward, getattr(forward, "no_sync", None)

    def __call__(self, *inputs):
        logits = self.forward(*inputs)
        logits.register_hook(lambda gradient: gradient * float("inf"))
        return logits


def run_jobs(folder, jobs):
    group = join_process_group(launched_world())
    return {name: run_job(folder, group, folder / f"two.{name}", **job) for name, job in jobs.items()}


def job_of(variant, flags=None, **more):
    flags = {**PLAIN, **VARIANTS[variant], **(flags or {})}
    return {"flags": flags, "infinite": INFINITE.get(variant, []), **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("layouts"))


@pytest.fixture(scope="module")
def one(folder):
    """One process without accumulation: {variant: its final arrays}."""
    return {
        name: run_job(folder, ProcessGroup(), folder / f"one.{name}", **job_of(name)) for name in VARIANTS
    }


@pytest.fixture(scope="module")
def two(folder, one):
    """Two processes in each layout, and with sharded state: {name: [the final arrays of each]}."""
    sharded = {**LAYOUTS["4x2"], "sharding": "stage2"}
    jobs = {f"{name}-{layout}": job_of(name, LAYOUTS[layout]) for name in VARIANTS for layout in LAYOUTS}
    for name in VARIANTS:
        if name != "adversarial":
            jobs[f"{name}-4x2-stage2"] = job_of(name, sharded)
    for name in ("clipped", "scaled"):
        jobs[f"{name}-8-stage2"] = job_of(name, {**LAYOUTS["8"], "sharding": "stage2"})
    for name, flags in (*LAYOUTS.items(), ("stage2", sharded)):
        jobs[f"plain-{name}-recompute"] = job_of("plain", {**flags, "use_recompute": True})
    jobs["plain-4x2-read together"] = job_of("plain", {**LAYOUTS["4x2"], "sync_freq": 100})
    jobs["rdrop-4x2"] = {"flags": {"dropout": 0.1, "rdrop_alpha": 1.0, **LAYOUTS["4x2"]}}
    run_job(folder, ProcessGroup(), folder / "half", {**PLAIN, **VARIANTS["clipped"]}, updates=3)
    resumed = {"first": 4, "resume": folder / "half" / "checkpoints" / "step_00000003"}
    jobs["clipped-4x2-resumed"] = job_of("clipped", LAYOUTS["4x2"], **resumed)
    jobs["clipped-4x2-stage2-resumed"] = job_of("clipped", sharded, **resumed)
    first, second = launch(folder, run_jobs, folder, jobs)
    return {name: (first[name], second[name]) for name in jobs}


def of_one(one, two):
    """(name, final arrays of the ranks, those of one process) of the jobs without dropout."""
    return [(name, ranks, one[name.split("-")[0]]) for name, ranks in two.items() if name != "rdrop-4x2"]


def difference(arrays, wanted):
    return max(np.abs(arrays[name] - array).max() for name, array in wanted.items() if "." in name)


def test_every_layout_gives_the_weights_of_one_process(one, two):
    differences = {name: difference(ranks[0], wanted) for name, ranks, wanted in of_one(one, two)}
    print("".join(f"\n{name:<36}{differences[name]:.1e}" for name in differences))
    assert max(differences.values()) < BOUND
    moved = one["plain"]["ernie.embeddings.word_embeddings.weight"]
    others = [one[name]["ernie.embeddings.word_embeddings.weight"] for name in one if name != "plain"]
    assert min(np.abs(moved - other).max() for other in others) > 100 * BOUND


def test_all_processes_are_bit_identical(two):
    for name, (first, second) in two.items():
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[key], second[key], equal_nan=True) for key in first), name


def test_every_layout_reports_the_metrics_of_one_process(one, two):
    for name, (arrays, _), wanted in of_one(one, two):
        first = 3 if name.endswith("resumed") else 0
        for curve in (*CURVES, "gradient_norm", "adversarial_loss"):
            if curve in wanted:
                np.testing.assert_allclose(arrays[curve], wanted[curve][first:], rtol=1e-4, err_msg=name)


def test_one_infinite_gradient_makes_all_skip_the_update(two):
    for layout in ("8", "4x2", "4x2-stage2"):
        assert two[f"scaled-{layout}"][0]["loss_scale"].tolist() == [8, 4, 4, 8, 8, 16]
        assert two[f"scaled-{layout}"][0]["skipped_updates"].tolist() == [0, 1, 1, 1, 1, 1]
        assert two[f"skipping-{layout}"][0]["skipped_updates"].tolist() == [0, 1, 1, 1, 2, 2]
    rates = two["skipping-8"][0]["learning_rate"]
    assert rates[1] == rates[2] < rates[3]


def optimizer_files(folder):
    (step,) = (folder / "checkpoints").iterdir()
    return [
        from_safetensors(path.read_bytes(), path.name) for path in sorted(step.glob("optimizer*.safetensors"))
    ]


@pytest.mark.parametrize("name", ["plain-4x2-stage2", "scaled-8-stage2"])
def test_each_process_writes_its_own_shard_of_optimizer_state(folder, two, name):
    (step,) = (folder / f"two.{name}" / "checkpoints").iterdir()
    files = sorted(path.name for path in step.glob("optimizer*"))
    assert files == [f"optimizer-0000{part}-of-00002.safetensors" for part in (0, 1)]
    first, second = optimizer_files(folder / f"two.{name}")
    assert not first.keys() & second.keys()
    sizes = [sum(array.size for array in part.values()) for part in (first, second)]
    assert max(sizes) < 1.3 * min(sizes)
    (wanted,) = optimizer_files(folder / f"one.{name.split('-')[0]}")
    both = {**first, **second}
    assert both.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_allclose(both[key], array, rtol=1e-3, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", ["clipped-8-stage2", "plain-4x2-stage2", "scaled-4x2"])
def test_one_process_resumes_from_the_state_of_several(folder, one, two, name):
    job = {**job_of(name.split("-")[0]), "updates": UPDATES + 2}
    whole = run_job(folder, ProcessGroup(), folder / f"{name}.whole", **job)
    resume = folder / f"two.{name}" / "checkpoints" / f"step_{UPDATES:08d}"
    rest = run_job(folder, ProcessGroup(), folder / f"{name}.rest", **job, first=UPDATES + 1, resume=resume)
    assert difference(rest, whole) < BOUND
    assert rest["learning_rate"].tolist() == whole["learning_rate"][UPDATES:].tolist()
