"""A new kind of training is a job: resume, logs, checkpoints and signals come with the engine."""

from inspect import getsourcelines

import numpy as np
import pytest
from masked_lm_job import MaskedLMConfig, MaskedLMJob, pretrain_masked_lm
from tiny_pretrain import events, write_corpus, write_model

from ernie_pair.models.source import open_model
from ernie_pair.train.hooks import Hooks


class Killed(BaseException):
    """An exception that no handler catches."""


class KillAt(Hooks):
    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_log(self, state, metrics):
        if state.step == self.step:
            raise Killed


def test_a_custom_job_learns_and_resumes_bit_identically(tmp_path):
    model = write_model(tmp_path / "model")
    write_corpus(tmp_path / "data", model)
    source = open_model(str(model), model_type="ernie", from_scratch=True)
    whole, cut = (MaskedLMConfig(tmp_path / "data/text", tmp_path / name, 40) for name in ("whole", "cut"))
    job = pretrain_masked_lm(source, whole, Hooks())
    with pytest.raises(Killed):
        pretrain_masked_lm(source, cut, KillAt(17))
    again = pretrain_masked_lm(source, cut, Hooks())
    for name, parameter in job.parameters.items():
        assert np.array_equal(again.parameters[name].numpy(), parameter.numpy()), name
    losses = [event["loss"] for event in events(whole.output_dir)]
    assert losses == [event["loss"] for event in events(cut.output_dir)]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


def test_a_custom_job_has_fewer_than_100_lines():
    assert len(getsourcelines(MaskedLMJob)[0]) < 100
