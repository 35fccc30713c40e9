"""Tokens that a folder adds beside its tokenizer; the ids are those of transformers 4.57.1 and 5.24.0."""

import json
import shutil

import pytest
from places import SUPPORT

from data_tools.text.folder_tokenizer import find_tokenizer, open_folder_tokenizer
from ernie_pair.core.errors import InputError

FOLDERS = SUPPORT / "published"
FIRST = 181  # the size of the vocabulary
SETTINGS = "tokenizer_config.json"


def flags(content, **told):
    return {
        **dict.fromkeys("lstrip rstrip single_word normalized".split(), False),
        "content": content,
        **told,
    }


def decoder(**more):
    settings = json.loads((FOLDERS / "plain" / SETTINGS).read_text(encoding="utf-8"))
    return {**settings["added_tokens_decoder"], **more}


# Of each folder: files and their content, of tokenizer_config.json what replaces its keys; and texts, cut.
ADDED = {"added_tokens.json": {"[Q]": FIRST, "Covid19": FIRST + 1}}
PAD = {"pad_token": "[PAD]"}
NO_DECODER = {SETTINGS: {"added_tokens_decoder": None}}
CASES = {
    "added_tokens.json": (
        {SETTINGS: {"added_tokens_decoder": None, "additional_special_tokens": ["[Q]"]}, **ADDED},
        {"怎么[Q] x": "怎 么 [Q] x", "xCOVID19covid19": "x Covid19 Covid19", "[q]": "[UNK] q [UNK]"},
    ),
    "added_tokens_decoder": (
        {
            SETTINGS: {
                "added_tokens_decoder": decoder(
                    **{
                        "181": flags("[Q]", special=True, rstrip=True),
                        "182": flags("covid19", single_word=True),
                        "8": flags("[MASK]", special=True, lstrip=True),
                    }
                )
            }
        },
        {
            "a\u200b[Q] a [MASK]a": "a [Q] a [MASK] a",
            "covid19 xco COVID19": "covid19 x ##c ##o c ##o ##v ##i ##d ##1 ##9",
        },
    ),
    "special_tokens_map.json": (
        {
            **NO_DECODER,
            "special_tokens_map.json": {**PAD, "additional_special_tokens": [flags("[Q]", lstrip=True)]},
            **ADDED,
        },
        {"É [Q]é": "e [Q] e", "COVID19": "Covid19"},
    ),
    "tokenizer_config.json": (
        {SETTINGS: {"additional_special_tokens": ["[Q]", "[D]"]}},
        {"[D]x[Q]": "[D] x [Q]"},
    ),
}


def cut(tokenizer, text):
    return " ".join(tokenizer.tokens[index] for index in tokenizer.encode(text))


def write(folder, files, has_fast):
    shutil.copytree(FOLDERS / "plain", folder)
    (folder / "special_tokens_map.json").unlink()
    if has_fast:  # without the tokens that are added
        (folder / "tokenizer.json").write_text(
            open_folder_tokenizer(folder / "vocab.txt", "bert").to_json(), encoding="utf-8"
        )
    for name, content in files.items():
        if name == SETTINGS:
            content = {**json.loads((folder / name).read_text(encoding="utf-8")), **content}
            content = {key: value for key, value in content.items() if value is not None}
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("has_fast", [False, True], ids=["vocab.txt", "tokenizer.json"])
@pytest.mark.parametrize("files, expected", CASES.values(), ids=CASES)
def test_tokens_stated_beside_a_tokenizer_are_cut_out_of_a_text(tmp_path, files, expected, has_fast):
    tokenizer = open_folder_tokenizer(find_tokenizer(write(tmp_path / "m", files, has_fast)), "bert")
    assert {text: cut(tokenizer, text) for text in expected} == expected
    plain = open_folder_tokenizer(FOLDERS / "plain" / "vocab.txt", "bert")
    assert tokenizer.is_extended and not plain.is_extended
    assert tokenizer.sha256 != plain.sha256 and tokenizer.tokens[181] == "[Q]"
    assert cut(tokenizer.without_control_tokens(), "[Q]") == "[UNK] q [UNK]"  # in a corpus it is text


def test_a_special_token_of_the_vocabulary_changes_the_identity(tmp_path):
    folder = write(tmp_path / "m", {SETTINGS: {"additional_special_tokens": ["x"]}}, has_fast=False)
    tokenizer = open_folder_tokenizer(folder / "vocab.txt", "bert")
    assert cut(tokenizer, "axa") == "a x a"
    assert tokenizer.sha256 != open_folder_tokenizer(FOLDERS / "plain" / "vocab.txt", "bert").sha256


@pytest.mark.parametrize("files, named", [
    ({**NO_DECODER, "added_tokens.json": {"[Q]": FIRST + 5}}, "has the id 186"),
    ({**NO_DECODER, "added_tokens.json": {"[Q]": "x"}}, "tokens.json.*no id"),
    ({SETTINGS: {"added_tokens_decoder": [1]}}, "not an object of tokens"),
    ({SETTINGS: {"added_tokens_decoder": {"181": {"content": 5}}}}, "is no text"),
    ({SETTINGS: {"added_tokens_decoder": {"181": flags("a", lstrip=1)}}}, "is no text"),
    ({SETTINGS: {"additional_special_tokens": 5}}, "is no list of tokens"),
])  # fmt: skip
def test_a_wrong_statement_is_refused_by_its_file(tmp_path, files, named):
    folder = write(tmp_path / "m", files, has_fast=False)
    with pytest.raises(InputError, match=named) as caught:
        open_folder_tokenizer(folder / "vocab.txt", "bert")
    assert str(folder) in str(caught.value)
