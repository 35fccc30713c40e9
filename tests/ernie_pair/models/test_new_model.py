"""A new model folder: what is written can be opened, and sizes that no model has are refused first."""

from pathlib import Path

import pytest
from tiny_pair import SIZES, VOCAB

from data_tools.files.errors import InputError
from ernie_pair.models.commands import NewModelConfig, new_model
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import FAMILIES, SHORTEST_PAIR


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
        max_position_embeddings=SHORTEST_PAIR,
        hidden_size=1,
        num_attention_heads=1,
    )
    assert open_model(str(folder), model_type=family, from_scratch=True).spec.hidden_size == 1


@pytest.mark.parametrize(
    "flags, reason",
    [
        ({"hidden_act": "gleu"}, "hidden_act takes one of auto, gelu, relu, not 'gleu'"),
        ({"max_position_embeddings": 3}, "max_position_embeddings=3 is below 5; use 5 or more"),
        ({"max_position_embeddings": 10**7}, "the new model: max_position_embeddings is 10000000, and takes"),
        ({"hidden_size": 10**6}, "the new model: hidden_size is 1000000, and takes a whole number from 1 to"),
        ({"num_hidden_layers": 1001}, "num_hidden_layers is 1001, and takes a whole number from 1 to 1000"),
        ({"intermediate_size": 10**7}, "intermediate_size is 10000000, and takes"),
        ({"hidden_size": 10**5, "num_hidden_layers": 9}, "about 4e.11 parameters, above 1e.10; correct its"),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_writing(tmp_path, flags, reason):
    with pytest.raises(InputError, match=reason):
        write(tmp_path, **flags)
    assert not (tmp_path / "new").exists()
