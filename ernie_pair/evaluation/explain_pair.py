"""The command `explain`: why a model of pairs gives one pair its score."""

import logging
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, Iterator

from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import paths_named
from ernie_pair.core.progress import say
from ernie_pair.evaluation.scorer import measured_once, open_scorer
from ernie_pair.models.model_card import data_in
from ernie_pair.models.model_folder import with_model_folder
from ernie_pair.pairs.config.ask_config import ExplainConfig
from ernie_pair.pairs.data.pair_file import BadRow
from ernie_pair.pairs.data.pair_source import PairSource
from ernie_pair.report.page import table_line
from ernie_pair.runtime.processes.world import launched_world

SHOWN = 10  # words

logger = logging.getLogger(__name__)


def explain_pair(config: ExplainConfig) -> Dict[str, Any]:
    """Print why a pair has its score, and return it, with all words and tokens; see `Explanation`.

    ``train_file``: where the ``nearest`` training pairs are from, '' if it is not known. Raises InputError.
    """
    if launched_world().size > 1:
        raise InputError("explain runs in one process; start it without a launcher")
    config = _with_train_file(with_model_folder(config))
    found = measured_once("explain", config, _explain)
    say("\n".join(explanation_lines(found)))
    return found


def _with_train_file(config: ExplainConfig) -> ExplainConfig:
    """Return the flags with the file that the model's folder names as its training pairs, if it is there."""
    if config.train_file:
        return config
    for use, name, sha256, _ in data_in(Path(config.model_path)):
        if use != "train":
            continue
        if not all(Path(path).is_file() for path in paths_named(name)):
            logger.info("the training pairs, %s, are not here; name them with --train_file", name)
        elif PairSource("train_file", name, "train", None).sha256() != sha256:
            logger.warning("%s has changed since the training; --train_file takes it as it is", name)
        else:
            return replace(config, train_file=name)
    return config


def _explain(config: ExplainConfig) -> Dict[str, Any]:
    source = PairSource("train_file", config.train_file, "train", None)
    try:
        rows = list(source.words()) if config.train_file else []
    except InputError as error:  # whose cure are flags of training
        cause = error.message.partition("; ")[0]
        raise InputError(f"{cause}; give a file with columns text_a, text_b and label") from None
    scorer = open_scorer(config)
    scorer.decide_by(None, config.symmetric)
    pairs = [(row.left, row.right, row.label) for row in rows if not isinstance(row, BadRow)]
    bad = [row for row in rows if isinstance(row, BadRow)]
    if bad:
        logger.warning(
            "%s: %s left out; the first: %s", config.train_file, counted(len(bad), "bad row"), bad[0].reason
        )
    return {**scorer.explain(config.text_a, config.text_b, pairs).content(), "train_file": config.train_file}


def explanation_lines(found: Dict[str, Any]) -> Iterator[str]:
    """Yield an `Explanation`, as JSON content, as the few lines of a terminal: the verdict first."""
    yield found["verdict"]
    mean = ", of which the mean counts" if found["symmetric"] == "average" else ""
    logits = ", ".join(f"{logit:.4f}" for logit in found["logits"])
    yield f"score {found['score']:.4f}; (a, b) {found['a_b']:.4f}, (b, a) {found['b_a']:.4f}{mean}"
    yield f"logits {logits}; temperature {found['temperature']:.4g}"
    shared = "shared" if found["has_match_embeddings"] else "shared (not told to the model)"
    for name in "ab":
        tokens, told = found[f"tokens_{name}"], [f"{name}: {len(found[f'tokens_{name}'])} tokens"]
        for what, key in ((shared, "run"), ("unknown", "is_unknown"), ("cut off", "is_cut")):
            runs = groupby(tokens, lambda token, key=key: bool(token[key]))  # type: ignore[misc]
            texts = ["".join(one["text"].removeprefix("##") for one in run) for fits, run in runs if fits]
            told += [f"{what}: {' '.join(texts)}"] if texts else []
        yield "; ".join(told)
    words = sorted(found["left_out"], key=lambda one: -abs(one["change"]))
    yield f"what each of {counted(len(words), 'word')} adds to the score, and the score without it"
    for one in words[:SHOWN]:
        yield f"{one['change']:+.4f}\t{one['text']}\t{one['word']}\t{one['score']:.4f}"
    if found["train_file"]:
        yield f"nearest pairs of {found['train_file']}, by BM25"
    for one in found["nearest"]:
        yield table_line([one["label"], one["text_a"], one["text_b"]])[:-1]
