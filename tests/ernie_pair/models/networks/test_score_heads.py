"""Single-output models of every family, in PaddleNLP's config format and in that of transformers."""

import json

import numpy as np
import paddle
import pytest
from tiny_pair import write_new

from data_tools.files.errors import InputError
from ernie_pair.models.hugging_face.folders import from_their_config, to_their_config
from ernie_pair.models.labels import Labels, labels_in
from ernie_pair.models.networks.classifier import build_classifier, load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import FAMILIES, parse_spec

SCORED = Labels.scores((1.0, 4.0))


def make(tmp_path, family, labels):
    source = open_model(str(write_new(tmp_path / "model", family)), model_type=family, from_scratch=True)
    spec = source.spec.with_labels(labels)
    return build_classifier(type(source)(source.name, spec, source.vocab_file, None), 0, 0.0), source


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_outputs_one_score_and_can_be_reloaded(tmp_path, family):
    model, source = make(tmp_path, family, SCORED)
    ids = paddle.to_tensor(np.array([[1, 5, 2, 6, 2]]))
    model.eval()
    outputs = model(ids, paddle.zeros_like(ids)).numpy()
    assert outputs.shape == (1, 1)
    biases = [p.numpy().tolist() for name, p in model.named_parameters() if name == model._output_bias()]
    assert biases == ([] if family == "roformerv2" else [[2.5]])  # roformerv2 has no biases
    (tmp_path / "saved").mkdir()
    model.write(tmp_path / "saved", source.vocab_file)
    again, _ = load_classifier(str(tmp_path / "saved"))
    assert again.spec.labels == SCORED
    assert np.array_equal(again(ids, paddle.zeros_like(ids)).numpy(), outputs)


def test_the_bias_of_a_ranking_model_is_frozen(tmp_path):
    model, _ = make(tmp_path, "ernie", Labels.of_candidates())
    still = [name for name, parameter in model.named_parameters() if parameter.stop_gradient]
    assert still == ["classifier.bias"]


@pytest.mark.parametrize("labels", [SCORED, Labels.scores(), Labels.of_candidates()])
def test_transformers_reads_one_output_as_regression(tmp_path, labels):
    model, _ = make(tmp_path, "bert", labels)
    theirs = to_their_config(model.spec.config, "bert", {}, "here", "ForSequenceClassification")
    assert theirs["num_labels"] == 1 and theirs["problem_type"] == "regression"
    ours = from_their_config(json.loads(json.dumps(theirs)), "there")
    assert labels_in(ours) == labels and parse_spec(ours).target == labels.target
    # As transformers saves it again: label names instead of their number; unknown keys are kept.
    named = {**theirs, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    named.pop("num_labels")
    assert labels_in(from_their_config(named, "there")) == labels


def test_a_one_label_transformers_config_means_regression(tmp_path):
    model, _ = make(tmp_path, "bert", Labels.numbered(2))
    theirs = to_their_config(model.spec.config, "bert", {}, "here", "ForSequenceClassification")
    assert labels_in(from_their_config(theirs, "there")) == Labels.numbered(2)
    one = {**theirs, "id2label": {"0": "LABEL_0"}}
    assert labels_in(from_their_config(one, "there")) == Labels.scores()


@pytest.mark.parametrize("value", ["0,5", [5, 0], [0], [0, "5"], [0, float("inf")]])
def test_an_invalid_label_range_in_config_json_is_refused(value):
    with pytest.raises(InputError, match="label_range is .*, and takes the lowest and the highest label"):
        parse_spec({"vocab_size": 9, "num_labels": 1, "problem_type": "regression", "label_range": value})


def test_new_labels_fully_replace_the_old_ones():
    spec = parse_spec({"vocab_size": 9, "num_labels": 2, "id2label": {"0": "no", "1": "yes"}})
    scored = spec.with_labels(SCORED)
    assert scored.target == "regression" and "id2label" not in scored.config
    back = scored.with_labels(Labels.numbered(3))
    assert back.target == "classification" and back.num_labels == 3
    assert not {"label_range", "problem_type", "pair_target"} & back.config.keys()
