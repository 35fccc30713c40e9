"""Training steps of an embedding model: micro-batches, dropout, bit-identical resume, what is trained."""

import numpy as np
import pytest
from tiny_embedding import embedding_job, gradients_of_next, run_steps, write_files, write_texts
from tiny_pair_job import difference, weights

from ernie_pair.checkpoint.checkpoint_folder import Checkpoint
from ernie_pair.checkpoint.checkpoints import Checkpoints
from ernie_pair.checkpoint.manifest import TrainState
from ernie_pair.runtime.processes.world import World

HALVED = {"batch_size": 8, "gradient_accumulation_steps": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_files(tmp_path_factory.mktemp("job"), spread=0.2)
    write_texts(folder / "texts.txt", 60)
    return folder


def trained(folder, steps=3, **flags):
    job, updates = embedding_job(folder, **flags)
    return job, run_steps(job, updates, steps)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_two_micro_batches_give_the_same_step_as_one(folder, pooling):
    flags = {"dropout": 0.0, "pooling": pooling, "hard_negatives": 2, "dims": "8,16"}
    wanted, found = (gradients_of_next(*embedding_job(folder, **flags, **size)) for size in ({}, HALVED))
    assert len(wanted) > 20 and difference(found, wanted) < 1e-5
    _, wanted = trained(folder, steps=1, **flags)
    _, found = trained(folder, steps=1, **flags, **HALVED)
    for name in ("loss", "gradient_norm", "accuracy"):
        assert [one[name] for one in found] == pytest.approx([one[name] for one in wanted], rel=1e-4)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
@pytest.mark.parametrize("objective", ["pairs", "simcse"])
def test_both_passes_of_a_micro_batch_use_the_same_dropout(folder, kernels, objective):
    texts = {"train_file": str(folder / "texts.txt")} if objective == "simcse" else {}
    job, updates = embedding_job(folder, objective=objective, kernels=kernels, **texts, **HALVED)
    made, vectors_of = [], job._vectors
    passes, seed_pass = [], job.seed_pass
    job.seed_pass = lambda *given: (passes.append(given), seed_pass(*given))

    def spy(*given):
        made.append(vectors_of(*given))
        return made[-1]

    job._vectors = spy
    run_steps(job, updates, 1)
    first, second, first_again, second_again = (one.numpy() for one in made)
    assert np.array_equal(first, first_again) and np.array_equal(second, second_again)
    assert passes == [(1, 0), (1, 1)] * 2  # and each micro-batch has its own
    if objective == "simcse":  # the two views of a text differ by their dropout
        assert not np.allclose(first[:8], first[8:16])


def test_dropout_differs_from_step_to_step(folder):
    job, updates = embedding_job(folder)
    batch = next(updates)[0]
    job.model.train()
    one, other = (job._vectors(batch, number, 0, job.model).numpy() for number in (1, 2))
    assert not np.allclose(one, other)


@pytest.mark.parametrize("kernels", ["auto", "plain"])
def test_a_resumed_job_is_bit_identical_to_the_whole_run(folder, tmp_path, kernels):
    flags = {"kernels": kernels, "hard_negatives": 2, **HALVED}
    whole, _ = trained(folder, steps=5, **flags)
    half, _ = trained(folder, steps=3, **flags)
    checkpoints = Checkpoints(tmp_path, World(), np.asarray)
    checkpoints.save(TrainState(step=3, consumed_samples=48), {}, half.state_files(), {})
    checkpoints.close()
    job, updates = embedding_job(folder, consumed=48, **flags)
    job.restore(Checkpoint(tmp_path / "checkpoints" / "step_00000003"))
    run_steps(job, updates, 5, first=4)
    assert difference(weights(job), weights(whole)) == 0


def test_loss_scaling_does_not_change_the_weights(folder):
    scaled = {"use_amp": True, "amp_dtype": "float32", "init_loss_scaling": 8.0}
    plain, _ = trained(folder, dropout=0.0)
    job, metrics = trained(folder, dropout=0.0, **scaled)
    assert difference(weights(job), weights(plain)) < 5e-5
    assert metrics[-1]["loss_scale"] == 8.0 and metrics[-1]["skipped_updates"] == 0


def test_a_non_finite_step_is_skipped(folder):
    job, updates = embedding_job(folder, on_nan="skip")
    run_steps(job, updates, 1)
    before, vectors_of = weights(job), job._vectors
    job._vectors = lambda *given: vectors_of(*given) * float("nan")
    (metrics,) = run_steps(job, updates, 2, first=2)
    assert metrics["skipped_updates"] == 1 and difference(weights(job), before) == 0


def test_recompute_gives_bit_identical_weights(folder):
    plain, _ = trained(folder)
    job, _ = trained(folder, use_recompute=True)
    assert difference(weights(job), weights(plain)) == 0


def test_the_pooler_is_not_trained(folder):
    job, updates = embedding_job(folder)
    before = weights(job)
    run_steps(job, updates, 2)
    after = weights(job)
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {name for name in before if "pooler" in name} and not any("pooler" in name for name in moved)
    assert "ernie.embeddings.word_embeddings.weight" in moved


def test_temperature_dims_negatives_and_pooling_have_an_effect(folder):
    plain, _ = trained(folder, steps=1, dropout=0.0)
    for flags in ({"temperature": 0.5}, {"dims": "4"}, {"hard_negatives": 0}, {"pooling": "cls"}):
        job, _ = trained(folder, steps=1, dropout=0.0, **flags)
        assert difference(weights(job), weights(plain)) > 1e-4, flags
