"""One thing, one flag, one default: read from the flags and the help of every command."""

import re
from collections import defaultdict
from dataclasses import MISSING, fields
from typing import get_type_hints

import pytest

from ernie_pair.commands import COMMANDS, config_class_of
from ernie_pair.training.run_flags import BEST_IF_AUTO

OPTIONS = [
    (command, item, get_type_hints(config_class)[item.name])
    for command, config_class in ((name, config_class_of(entry)) for name, entry in COMMANDS.items())
    for item in fields(config_class)
]
# What a flag is for, as help texts say it: the names that a flag for it may have.
THINGS = {
    r"^an embedding model\b|\bthe embedding model that\b|^embedding model": "embedding_model model_path",
    r"\bmodel of pairs\b|\bpair classifier that\b|^the folder that ernie-pair export": "model_path",
    r"^(a )?folder (to create|for)\b|\bgoes? here\b": "output_dir report cache_dir log_dir",
    r"\bfile to (write|keep)\b|^the vocab.txt to write|^the lexicon to write": "output_file robustness_file",
    r"\ba text per line \(": "input_file",
    r"^labelled pairs[,:]? ": "train_file dev_file test_file input_file calibrate_on tune_on quantize_file "
    "general_file",
    r"^replace (an )?existing\b": "overwrite",
    r"^threads of\b": "threads",
    r"^where (to run|the .*runs?)\b": "device",
    r"^class of your own|^your own subclass of": "model_class",
    r"^the column of the first text": "text_a",
    r"^the column of the second text": "text_b",
    r"^the column of the label": "label",
    r"^names of the (classes|labels)": "label_map",
    r"^bootstrap resamples": "bootstrap",
    r"^precision of matrix products": "precision",
    r"^type of the (stored )?numbers": "dtype",
}
# Flags whose default, where they have one, is not the same everywhere, and why.
DEFAULTS = {
    "batch_size max_seq_len eval_freq checkpoint_steps logging_freq max_steps grad_clip seed": "recipes",
    "binary_head hidden_size intermediate_size model_type pooling symmetric": "as the folder, or a value",
    "device": "an exported model runs on the CPU",
    "documents pairs epochs num_samples top_k": "as many as the command needs",
    "format dtype": "of answers, of models, of vectors",
    "min_count temperature precision": "of n-grams, of logits and cosines, of products and files for a GPU",
    "output_file output_dir port": "what a command writes, or where it listens, if nobody says",
    "retrieval": "of an index, and all that it was made for",
}
# Flags of two types, and why: words that a command has more or fewer of, or a number that it may leave open.
TYPES = "binary_head device dtype format model_type pooling precision retrieval symmetric"


def differing(value_of):
    found = defaultdict(set)
    for _, item, hint in OPTIONS:
        found[item.name].add(value_of(item, hint))
    return {name for name, values in found.items() if len(values - {None}) > 1}


@pytest.mark.parametrize("pattern", THINGS)
def test_a_thing_has_one_name(pattern):
    named = {item.name for _, item, _ in OPTIONS if re.search(pattern, item.metadata["help"])}
    assert named and named <= set(THINGS[pattern].split())


def test_the_same_help_is_of_the_same_flag():
    names = defaultdict(set)
    for _, item, _ in OPTIONS:
        names[item.metadata["help"]].add(item.name)
    assert [both for both in names.values() if len(both) > 1] == []


def test_a_flag_has_one_type():
    assert differing(lambda item, hint: str(hint)) == set(TYPES.split())


def test_a_flag_has_one_default():
    found = differing(lambda item, hint: None if item.default in (MISSING, "") else repr(item.default))
    assert found == {name for names in DEFAULTS for name in names.split()}


def test_auto_of_best_metric_is_explained_in_one_sentence():
    helps = {item.metadata["help"].partition("; ")[2] for _, item, _ in OPTIONS if item.name == "best_metric"}
    assert helps == {BEST_IF_AUTO}
