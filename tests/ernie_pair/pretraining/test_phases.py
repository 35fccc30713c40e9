"""Short samples first, then long ones, in one run; resuming in either phase is bit-identical."""

import numpy as np
import pytest
import tiny_pretrain
from pretrain_runs import assert_same_files, cut_after
from tiny_pretrain import events, opened, write_corpus, write_model

from data_tools.corpus.mixture import PhasedDataset
from ernie_pair.core.errors import InputError
from ernie_pair.pretraining.config.pretrain_config import Phase, parse_phases

PHASES = {"phases": "16:3,32:3", "checkpoint_steps": 1, "global_batch_size": 8, "keep_checkpoints": 9}


OWN = {"phases": "16:3:8,32:3:2"}  # one pass, then four, of the 8 samples of a step


@pytest.fixture(scope="module")
def world(module_path):
    model = write_model(module_path / "model")
    for number, name in enumerate("ab"):
        write_corpus(module_path / name, model, seed=number)
    return module_path


def pretrain(world, output, code=0, **changes):
    return tiny_pretrain.pretrain(world, output, code, **{"input_dir": world / "a", **PHASES, **changes})


@pytest.fixture(scope="module")
def wholes(world):
    """A finished run with micro-batches of one size, and one with a size for each phase."""
    for name, flags in (("whole", {}), ("own", OWN)):
        pretrain(world, world / name, **flags)
    return {name: world / name for name in ("whole", "own")}


@pytest.mark.parametrize("name", ["whole", "own"])
@pytest.mark.parametrize("step", [2, 3, 5], ids=["in the first", "between", "in the second"])
def test_resuming_within_a_phase_is_bit_identical(world, wholes, name, step):
    cut = cut_after(wholes[name], world / f"{name}_{step}", step)
    flags = OWN if name == "own" else {"num_workers": 1}
    assert f"step_{step:08d}: {8 * step} samples seen" in pretrain(world, cut, **flags)
    assert events(cut) == events(wholes[name])
    assert_same_files(cut, wholes[name])


def test_lengths_and_samples_follow_the_phases(world):
    data = opened(world, phases="16:3,32:3", short_seq_prob=0)
    lengths = [batch["input_ids"].shape[1] for group in data.updates(0) for batch in group]
    assert len(lengths) == 6 and max(lengths[:3]) == 16 and max(lengths[3:]) == 32
    assert max(batch["input_ids"].shape[1] for batch in data.evaluation("valid")) == 32
    phased = opened(world, phases="16:4,32:2").updates(0)
    alone = opened(world, max_seq_len=16).updates(0)
    for _, (one,), (other,) in zip(range(4), phased, alone):
        assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("bucket_size", [0, 4])
@pytest.mark.parametrize("blend", [False, True])
def test_updates_resume_after_the_samples_seen(world, bucket_size, blend):
    settings = {"phases": "16:40,32:40", "max_steps": 80, "bucket_size": bucket_size}
    settings["input_dir"] = f"1 {world / 'a'} 2 {world / 'b'}" if blend else world / "a"
    updates = [group[0]["input_ids"] for group in opened(world, **settings).updates(0)]
    assert len(updates) == 80
    for step in (30, 40, 55):
        resumed = [group[0]["input_ids"] for group in opened(world, **settings).updates(4 * step)]
        assert len(resumed) == 80 - step and all(map(np.array_equal, updates[step:], resumed))


def test_phases_of_equal_length_read_different_samples(world):
    """The second phase reads the documents again, in another order and with other masks."""
    data = opened(world, phases="32:3,32:3")
    one, other = (
        [b["input_ids"] for (b,) in list(data.updates(0))[half]] for half in (slice(3), slice(3, 6))
    )
    assert not any(np.array_equal(a, b) for a, b in zip(one, other))
    runs = [opened(world, phases="32:2,32:2,32:2", seed=seed) for seed in (1, 2)]
    assert len({each.seed for data in runs for each in (data.datasets["train"], *data.later)}) == 6


def test_an_epoch_is_measured_over_all_phases(world):
    def of(**changes):
        return opened(world, max_steps=200, **changes).samples_per_epoch

    short, long = of(max_seq_len=16), of(max_seq_len=32)
    assert long < of(phases="16:100,32:100") < short


def test_phases_are_parsed_and_start_at_their_first_sample():
    phased = PhasedDataset(["abcd", "xyz"], [2, 3])
    assert [phased[number] for number in range(len(phased))] == list("abxyz")
    assert parse_phases("", 32, 6, 8) == (Phase(32, 6, 8),)
    assert parse_phases(" 16:2, 32:4 : 2", 32, 6, 8) == (Phase(16, 2, 8), Phase(32, 4, 2))


def test_impossible_runs_are_refused(world, wholes):
    with pytest.raises(InputError, match="max_seq_len=48 is above the model's 40 positions"):
        opened(world, phases="16:3,48:3", max_seq_len=48)
    said = pretrain(world, world / "none", 2, phases="16:3,32:3:3")
    error = "micro-batches of 3 on 1 process do not divide the 8 samples of a step; use sizes that do"
    assert error in said and not (world / "none").exists()
    assert "phases was '16:3,32:3' and is now '16:2,32:4'" in pretrain(
        world, wholes["whole"], 2, phases="16:2,32:4"
    )


@pytest.mark.parametrize("graph", ["static", "dynamic"])
def test_micro_batch_size_per_phase_does_not_change_losses(world, graph):
    """However many passes a step has, it learns from the same samples; dropout, drawn per pass, is off."""
    flags_of_both = {"graph": graph, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    for name, phases in (("own", OWN), ("one", {"phases": "16:3,32:3", "micro_batch_size": 8})):
        pretrain(world, world / f"{graph}_{name}", **flags_of_both, **phases)
    one, own = (losses(world / f"{graph}_{name}") for name in ("one", "own"))
    assert len(one) == 6 and own == pytest.approx(one, rel=2e-5)


def losses(output):
    return [event["loss"] for event in events(output) if "loss" in event and event.get("split") == "train"]


def test_each_phase_uses_its_own_micro_batch_size(world):
    settings = {"global_batch_size": 0, "phases": "16:2:8,32:4:2", "short_seq_prob": 0}
    groups = list(opened(world, **settings).updates(0))
    assert [[len(batch["input_ids"]) for batch in group] for group in groups] == [[8]] * 2 + [[2] * 4] * 4
    assert [len(b["input_ids"]) for b in opened(world, **settings).evaluation("valid")][:4] == [2] * 4
    whole = opened(world, **{**settings, "phases": "16:2:8,32:4:8"}).updates(0)
    for group, (one,) in zip(groups, whole):
        for name in ("next_sentence_labels", "masked_lm_labels"):
            assert np.array_equal(labels_in([one], name), labels_in(group, name))


def labels_in(group, name):
    labels = np.concatenate([batch[name] for batch in group])
    return labels[labels >= 0]
