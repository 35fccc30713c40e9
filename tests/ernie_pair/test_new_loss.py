"""A loss is one row: the flag, its help and its refusals take it, and a model is trained with it."""

from children import json_of

LOSS = """
from paddle.nn import functional as F
from ernie_pair.pairs.train.loss import RankNetLoss

class SquaredHinge(RankNetLoss):
    def _loss_of_pairs(self, better, other):
        return F.relu(1 - better + other) ** 2
"""
PROGRAM = """
import json, sys
from pathlib import Path

from ernie_pair.pairs.config.pair_config import RANKING_LOSSES, TrainConfig

RANKING_LOSSES["squared-hinge"] = "own_loss:SquaredHinge"

from tiny_pair import graded_rows, target_config

import ernie_pair
from ernie_pair.core.cli.cli import help_text

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
config = target_config(folder, "ranking", graded_rows, ranking_loss="squared-hinge", max_steps=40)
trained = ernie_pair.train(config)
events = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
losses = [event["loss"] for event in events if event["split"] == "train"]
try:
    TrainConfig(**{**vars(config), "ranking_loss": "hinge"})
except ernie_pair.InputError as error:
    refused = str(error)
print(json.dumps([
    "squared-hinge" in help_text(TrainConfig, "train"), "margin, squared-hinge" in refused,
    losses[-1] < losses[0], trained.metrics["hit_at_1"],
]))
"""


def test_a_row_is_all_that_a_new_loss_needs(tmp_path):
    (tmp_path / "own_loss.py").write_text(LOSS)
    *is_taken, is_learned, hits = json_of("-c", PROGRAM, tmp_path)
    assert is_taken == [True, True] and is_learned and hits > 0.4
