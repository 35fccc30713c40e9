"""Folders of sentence-transformers: what is read from the files of its versions, and what is refused."""

import json
import shutil

import pytest
from tiny_models import WIDTH, change, settings_for, write_sentence

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.embeddings.open_embedder import open_embedder
from ernie_pair.models.commands import (
    FromHuggingFaceConfig,
    ToHuggingFaceConfig,
    convert_from_hugging_face,
    convert_to_hugging_face,
)
from ernie_pair.models.embedding_json import (
    NORMALIZE,
    EmbeddingSettings,
    Step,
    compute_fingerprint,
    read_embedding,
)
from ernie_pair.models.model_folder import list_model_files
from ernie_pair.models.sentence_transformers import read_sentence_folder, read_vector_settings
from ernie_pair.models.source import open_model

DENSE = Step("dense", 8, activation="gelu")
SETTINGS, LENGTH = "config_sentence_transformers.json", "sentence_bert_config.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_sentence(tmp_path_factory.mktemp("sentence") / "m", "cls+mean", (DENSE, NORMALIZE))


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "m")


def read(folder):
    return read_vector_settings(folder, open_model(str(folder), model_type="").spec)


def test_what_is_written_is_read(folder):
    assert read(folder) == settings_for("cls+mean", (DENSE, NORMALIZE))
    names = {path.relative_to(folder).as_posix() for path in list_model_files(str(folder))}
    assert {"modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"} <= names


FLAGS = {
    **{f"pooling_mode_{name}": True for name in ("lasttoken", "max_tokens", "cls_token")},
    "pooling_mode_mean_tokens": False,
}
POOLINGS = {
    "flags": ({"word_embedding_dimension": WIDTH, **FLAGS}, "cls+max+lasttoken"),
    "no flag": ({"word_embedding_dimension": WIDTH}, "mean"),
    "a mode": (
        {"embedding_dimension": WIDTH, "pooling_mode": "mean_sqrt_len_tokens"},
        "mean_sqrt_len_tokens",
    ),
    "two modes": (
        {"embedding_dimension": WIDTH, "pooling_mode": ["lasttoken", "weightedmean"]},
        "lasttoken+weightedmean",
    ),
}


@pytest.mark.parametrize("config, pooling", POOLINGS.values(), ids=POOLINGS)
def test_poolings_of_all_versions(tmp_path, config, pooling):
    folder = write_sentence(tmp_path / "m", steps=())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert read(folder).pooling == pooling
    assert read(folder).dim == WIDTH * len(pooling.split("+"))


def test_names_of_version_6_and_an_encoder_in_its_own_folder(folder):
    modules = json.loads((folder / "modules.json").read_text())
    rooms = ("base.modules.transformer", "sentence_transformer.modules.pooling", "base.modules.dense", "x")
    for module, room in zip(modules, rooms):
        module["type"] = f"sentence_transformers.{room}.{module['type'].rpartition('.')[2]}"
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "0_Transformer").mkdir()
    for path in [*folder.iterdir()]:
        if path.is_file() and path.name not in ("modules.json", SETTINGS):
            path.rename(folder / "0_Transformer" / path.name)
    (folder / "0_Transformer" / LENGTH).rename(folder / "0_Transformer" / "sentence_roberta_config.json")
    assert read(folder) == settings_for("cls+mean", (DENSE, NORMALIZE))
    names = [path.relative_to(folder).as_posix() for path in list_model_files(str(folder))]
    assert "0_Transformer/config.json" in names and "2_Dense/config.json" in names


@pytest.mark.parametrize(
    "told, tokenizer, length",
    [({"max_seq_length": 24}, 30, 24), ({}, 30, 30), ({}, None, 128), ({"max_seq_length": 999}, 30, 128)]
    + [({"tokenizer_args": {"model_max_length": 12}, "max_seq_length": 24}, 30, 12)],
)
def test_the_longest_input(folder, told, tokenizer, length):
    (folder / LENGTH).write_text(json.dumps(told))
    change(folder / "tokenizer_config.json", model_max_length=tokenizer)
    assert read(folder).max_seq_len == length


def test_prompts_similarity_and_truncation(folder):
    prompts = {"query": "q: ", "document": "", "passage": "p: ", "other": "o: "}
    told = {"default_prompt_name": "other", "similarity_fn_name": "dot", "truncate_dim": 5}
    change(folder / SETTINGS, prompts=prompts, **told)
    found = read(folder)
    assert (found.prompt_of("query"), found.prompt_of("passage")) == ("q: ", "p: ")
    assert (found.prompt_named("", "m"), found.similarity) == ("o: ", "dot")
    assert (found.dim, found.is_unit, found.steps[-1]) == (5, False, Step("truncate", 5))
    change(folder / SETTINGS, prompts={"other": "o: "}, truncate_dim=8)
    assert read(folder).prompt_of("passage") == "o: " and read(folder).is_unit


def test_prompts_and_modules_are_part_of_the_fingerprint():
    plain = settings_for()
    others = [settings_for(prompts={"query": "q"}), settings_for(steps=()), settings_for(lower_case=True)]
    others += [settings_for(includes_prompt=False), settings_for(similarity="dot"), plain]
    assert len({compute_fingerprint("f" * 64, one, 32) for one in others}) == 6
    empty = settings_for(prompts={"query": "", "document": ""})
    assert compute_fingerprint("f" * 64, empty, 32) == compute_fingerprint("f" * 64, plain, 32)


NORM = "sentence_transformers.models.LayerNorm"
POOL, DENSE_JSON = "1_Pooling/config.json", "2_Dense/config.json"
TANH = "torch.nn.modules.activation.Hardtanh"
MODULES = {  # of modules.json: the place, and what is changed there
    "another module": (3, {"type": NORM}, "module .LayerNorm. is not"),
    "own code": (3, {"type": "custom.Normalize"}, "module .custom.Normalize. is not"),
    "no pooling": (1, {"type": f"{NORM[:29]}Normalize"}, "Transformer, Normalize"),
    "a path outside": (1, {"path": "../x"}, "which is no folder in it"),
}
SETTINGS_OF = {  # the file, its changes
    "another pooling": (POOL, {"pooling_mode": "median"}, "pooling .median. is not"),
    "an unknown flag": (POOL, {"pooling_mode_median": True}, "pooling .median. is not"),
    "another width": (POOL, {"word_embedding_dimension": 16}, "in_features is 64, and"),
    "an activation": (DENSE_JSON, {"activation_function": TANH}, f"function .{TANH}. is not computed"),
    "another input": (
        DENSE_JSON,
        {"module_input_name": "token_embeddings"},
        "module_input_name is .token_embeddings., and only sentence_embedding",
    ),
    "a reranker": (SETTINGS, {"model_type": "CrossEncoder"}, "it is a .CrossEncoder."),
    "a default without prompt": (
        SETTINGS,
        {"default_prompt_name": "code"},
        "default_prompt_name cannot be .code.",
    ),
    "a similarity": (SETTINGS, {"similarity_fn_name": "maxsim"}, "similarity_fn_name cannot be .maxsim."),
    "another task": (
        LENGTH,
        {"transformer_task": "text-generation"},
        "transformer_task is .text-generation., which is not computed here",
    ),
    "settings of a tokenizer": (
        LENGTH,
        {"tokenizer_args": {"padding_side": "left"}},
        "tokenizer_args: padding_side is .left., which is not computed here",
    ),
    "no length": (LENGTH, {"max_seq_length": 1}, "max_seq_length is 1"),
}
TEXTS = {  # of a file; None removes it
    "no list": ("modules.json", "{}", "modules.json: it is no list of modules"),
    "no JSON": ("modules.json", "[{", "modules.json:1: not JSON"),
    "no pooling file": (POOL, None, "1_Pooling has no config.json"),
}
REFUSED = {**MODULES, **SETTINGS_OF, **TEXTS}


@pytest.mark.parametrize("place, spoil, reason", REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_by_its_name(folder, place, spoil, reason):
    if isinstance(place, int):
        modules = json.loads((folder / "modules.json").read_text())
        modules[place].update(spoil)
        (folder / "modules.json").write_text(json.dumps(modules))
    elif isinstance(spoil, dict):
        change(folder / place, **spoil)
    else:
        (folder / place).write_text(spoil) if spoil else (folder / place).unlink()
    with pytest.raises(InputError, match=reason) as found:
        read(folder)
    assert "\n" not in found.value.message


def test_poolings_and_weights_that_do_not_fit_are_refused(tmp_path, folder):
    narrow = write_sentence(tmp_path / "narrow")
    change(narrow / POOL, word_embedding_dimension=16)
    with pytest.raises(InputError, match="said to have 16 numbers, and the encoder makes 32"):
        open_embedder(narrow)
    change(folder / DENSE_JSON, bias=False)
    with pytest.raises(CheckpointError, match="2_Dense: it holds .*, and its config.json asks for"):
        read_sentence_folder(folder).dense_arrays()
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="2_Dense has neither model.safetensors nor pytorch_model.bin"):
        read_sentence_folder(folder).dense_arrays()


def test_files_that_contradict_each_other_are_refused(folder):
    told = settings_for("cls+mean", (DENSE, NORMALIZE), dims=(4, 8), temperature=0.1)
    (folder / "embedding.json").write_text(told.to_json())
    assert read(folder) == told
    change(folder / SETTINGS, prompts={"query": "", "document": ""})
    assert read(folder) == told
    change(folder / SETTINGS, prompts={"query": "q: "})
    with pytest.raises(InputError, match="prompts is {} in embedding.json and {'query': 'q: '} in"):
        read(folder)


@pytest.mark.parametrize(
    "spoil",
    [{"steps": [{"kind": "cnn"}]}, {"prompts": {"a": 1}}, {"default_prompt": "x"}, {"similarity": "x"}],
)
def test_damaged_settings_of_format_2_are_refused(tmp_path, spoil):
    (tmp_path / "embedding.json").write_text(settings_for("max").to_json(**spoil))
    with pytest.raises(InputError, match=f"embedding.json: wrong or missing: {min(spoil)}"):
        read_embedding(tmp_path)


def test_the_prompt_of_passages_is_written_under_both_its_names(folder, tmp_path):
    change(folder / SETTINGS, prompts={"passage": "p: ", "document": ""})
    convert_from_hugging_face(FromHuggingFaceConfig(str(folder), str(tmp_path / "own")))
    convert_to_hugging_face(ToHuggingFaceConfig(str(tmp_path / "own"), str(tmp_path / "theirs")))
    written = json.loads((tmp_path / "theirs" / SETTINGS).read_text())["prompts"]
    assert written == {"passage": "p: ", "document": "p: "}
    own, theirs = (read_embedding(tmp_path / name) for name in ("own", "theirs"))
    assert compute_fingerprint("f" * 64, own, 32) == compute_fingerprint("f" * 64, theirs, 32)


def test_an_embedding_model_is_converted_both_ways(folder, tmp_path):
    change(folder / SETTINGS, prompts={"query": "q: "}, default_prompt_name="query")
    convert_from_hugging_face(FromHuggingFaceConfig(str(folder), str(tmp_path / "own")))
    convert_to_hugging_face(ToHuggingFaceConfig(str(tmp_path / "own"), str(tmp_path / "theirs")))
    assert read(folder) == read(tmp_path / "own") == read(tmp_path / "theirs")
    ours, theirs = (read_sentence_folder(one).dense_arrays() for one in (tmp_path / "theirs", folder))
    assert {name: array.tolist() for name, array in ours.items()} == {
        name: array.tolist() for name, array in theirs.items()
    }


@pytest.mark.parametrize("pooling", ["cls", "lasttoken+mean"])
def test_embedding_json_is_read_as_it_was_written(tmp_path, pooling):
    settings = EmbeddingSettings(pooling, 8, (8,), 16, 0.05)
    (tmp_path / "embedding.json").write_text(settings.to_json())
    assert read_embedding(tmp_path) == settings
