"""A family is one record: flags take it, and a model of it is made, trained, converted and asked."""

from children import json_of

PROGRAM = """
import json, sys
from dataclasses import replace
from pathlib import Path

from ernie_pair.models.families import FAMILIES

bert = FAMILIES["bert"]  # PaddleNLP's BertModel under a name and a type of its own, of at most 24 tokens
there = replace(bert.counterpart, model_type="mini-bert")
FAMILIES["mini"] = replace(bert, attribute="tiny", max_positions=24, token_types=3, counterpart=there)

import numpy as np
from tiny_pair import SIZES, VOCAB, toy_rows

import ernie_pair
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.models import commands
from ernie_pair.models.networks.classifier import load_classifier
from ernie_pair.models.source import open_model
from ernie_pair.models.spec import family_in, parse_spec, tokenizer_class_name
from ernie_pair.pairs.config.pair_config import TrainConfig

folder, rows = Path(sys.argv[1]), list(toy_rows(40, seed=0))
new, theirs, back = (str(folder / name) for name in ("new", "theirs", "back"))
(folder / "tokens.txt").write_text("".join(f"{token}\\n" for token in VOCAB), encoding="utf-8")
commands.new_model(commands.NewModelConfig(str(folder / "tokens.txt"), new, model_type="mini", **SIZES))
flags = {"model_type": "mini", "from_scratch": True, "max_steps": 2, "device": "cpu", "max_seq_len": 16}
flags["match_embeddings"] = False  # which transformers has not
config = ernie_pair.PairConfig(str(folder / "out"), **flags)
best = str(ernie_pair.PairTrainer(new, config, rows, rows).train().best_model)
commands.convert_to_hugging_face(commands.ToHuggingFaceConfig(best, theirs))
commands.convert_from_hugging_face(commands.FromHuggingFaceConfig(theirs, back))
ernie_pair.export_pair(ernie_pair.ExportConfig(best, str(folder / "ship")))
model, again = (load_classifier(path)[0].state_dict() for path in (best, back))
words = "--model_name_or_path x --train_file x --dev_file x --output_dir x --model_type mini".split()
print(json.dumps({
    "flag": parse_config(TrainConfig, words, "train").model_type,
    "positions": open_model(new, from_scratch=True).spec.max_positions,
    "token types": parse_spec({"vocab_size": 9, "model_type": "mini"}).token_types,
    "tokenizer": tokenizer_class_name("mini"),
    "family": family_in(json.loads(Path(best, "config.json").read_text())),
    "there": json.loads(Path(theirs, "config.json").read_text())["model_type"],
    "encoder": {name.partition(".")[0] for name in model} == {"tiny", "classifier"},
    "same": all(np.array_equal(again[name].numpy(), one.numpy()) for name, one in model.items()),
    "labels": ernie_pair.PairPredictor(folder / "ship").predict([rows[0][:2]]).labels[0] in ("0", "1"),
}))
"""


def test_a_record_is_all_that_a_new_family_needs(tmp_path):
    assert json_of("-c", PROGRAM, tmp_path) == {
        "flag": "mini",
        "positions": 24,
        "token types": 3,
        "tokenizer": "BertTokenizer",
        "family": "mini",
        "there": "mini-bert",
        "encoder": True,
        "same": True,
        "labels": True,
    }
