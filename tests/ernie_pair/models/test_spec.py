"""What config.json says of a model, and the folders of new ones."""

import json
from pathlib import Path

import pytest
from tiny_pair import SIZES, VOCAB, write_model

from ernie_pair.core.errors import InputError
from ernie_pair.models.commands import NewModelConfig, new_model
from ernie_pair.models.families import FAMILIES
from ernie_pair.models.labels import parse_label_map
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import MIN_PAIR_LENGTH, parse_spec, read_spec


def sizes(spec):
    return spec.max_positions, spec.token_types, spec.pad_id, spec.hidden_size, spec.num_layers


def test_missing_config_keys_get_paddlenlps_defaults():
    assert sizes(parse_spec({"vocab_size": 9})) == (512, 16, 0, 768, 12)
    assert sizes(parse_spec({"vocab_size": 9, "model_type": "ernie_gram"})) == (512, 2, 0, 768, 12)
    positions = {"vocab_size": 9, "max_position_embeddings": 514, "pad_token_id": 1}
    assert parse_spec({**positions, "model_type": "roberta"}).max_positions == 512
    assert parse_spec({**positions, "model_type": "nezha"}).max_positions == 512
    assert parse_spec(positions).max_positions == 514


@pytest.mark.parametrize(
    "key, value",
    [("max_position_embeddings", 0), ("type_vocab_size", -1), ("pad_token_id", "[PAD]"), ("pooling", "max")],
)
def test_an_invalid_config_value_is_reported_with_its_key(key, value):
    with pytest.raises(InputError, match=f"config.json: {key} is"):
        parse_spec({"vocab_size": 9, key: value})
    with pytest.raises(InputError, match=f"config.json: {key} is"):
        parse_spec({"vocab_size": 9}).replace(**{key: value})


def test_tokenizer_config_next_to_the_vocabulary_is_read(tmp_path):
    folder = write_model(tmp_path / "m", do_lower_case=False)
    files = folder / "config.json", folder / "vocab.txt"
    assert (read_spec(*files).lower_case, read_spec(*files).trained_length) == (False, 0)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 33}))
    assert (read_spec(*files).lower_case, read_spec(*files).trained_length) == (True, 33)


def test_changing_a_spec_makes_a_copy_and_keeps_other_keys():
    spec = parse_spec({"vocab_size": 9, "not_ours": [1]}, {"do_lower_case": False, "model_max_length": 20})
    named = spec.with_labels(parse_label_map("no,yes"))
    assert named.labels.names == ("no", "yes") and spec.labels.names == ("0", "1")
    assert (named.lower_case, named.trained_length, named.config["not_ours"]) == (False, 20, [1])
    assert spec.to_config() == {"vocab_size": 9, "not_ours": [1]}
    assert named.sha256 != spec.sha256 == parse_spec({"not_ours": [1], "vocab_size": 9}).sha256


# --- a new model folder: it can be opened, and sizes that no model has are refused


def write(folder: Path, **flags) -> Path:
    vocab_file = folder / "tokens.txt"
    vocab_file.write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    new_model(NewModelConfig(str(vocab_file), str(folder / "new"), **{**SIZES, **flags}))
    return folder / "new"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_smallest_new_model_can_be_opened(tmp_path, family):
    folder = write(
        tmp_path,
        model_type=family,
        max_position_embeddings=MIN_PAIR_LENGTH,
        hidden_size=1,
        num_attention_heads=1,
    )
    assert open_model(str(folder), model_type=family, from_scratch=True).spec.hidden_size == 1


@pytest.mark.parametrize("flags, reason", [
    ({"hidden_size": 30, "num_attention_heads": 4}, "hidden_size 30 is not a multiple of num_att"),
    ({"max_position_embeddings": 10**7}, "the new model: max_position_embeddings is 10000000, and takes"),
    ({"hidden_size": 10**6}, "the new model: hidden_size is 1000000, and takes a whole number from 1 to"),
    ({"num_hidden_layers": 1001}, "num_hidden_layers is 1001, and takes a whole number from 1 to 1000"),
    ({"intermediate_size": 10**7}, "intermediate_size is 10000000, and takes"),
    ({"hidden_size": 10**5, "num_hidden_layers": 9}, "about 4e.11 parameters, above 1e.10; correct its"),
])  # fmt: skip
def test_sizes_that_no_model_has_are_refused_before_writing(tmp_path, flags, reason):
    with pytest.raises(InputError, match=reason):
        write(tmp_path, **flags)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("width, heads", [(768, 12), (312, 12), (128, 2), (256, 4), (50, 1), (97, 1)])
def test_the_heads_of_a_new_model_follow_from_its_width(width, heads):
    assert NewModelConfig("vocab.txt", "out", hidden_size=width).num_attention_heads == heads
