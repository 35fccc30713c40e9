"""ernie-pair evaluate --model_path output --input_dir data: its masked loss on held-out text."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np

from data_tools.corpus.format import Corpus, document_ranges, find_corpus, open_corpus
from data_tools.corpus.twin_vocab import check_vocab_size, vocabulary_of
from data_tools.samples.masking import NO_LABEL, MaskingFlags
from data_tools.samples.split_datasets import collate, dataset_of
from ernie_pair.core.cli.options import (
    OverwriteFlag,
    data_option,
    devices_option,
    evaluation_option,
    model_folder_option,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.core.installation import TRAINING
from ernie_pair.core.progress import CountProgress, say
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.pretraining.config.pretrain_config import check_model_fits
from ernie_pair.pretraining.mlm.fill_mask import has_order_head, load_pretrained
from ernie_pair.runtime.device import DeviceFlag, start_device
from ernie_pair.runtime.processes.console import start_console
from ernie_pair.runtime.processes.world import World
from ernie_pair.training.step_metrics import perplexity_of

SEED = 1234  # of the resamples


def measure_masked_loss(
    model: Any,
    dataset: Any,
    pad_id: int,
    max_seq_len: int,
    batch_size: int,
    bootstrap: int = 0,
    documents: Optional[np.ndarray] = None,
) -> dict[str, Any]:
    """Return lm_loss with its 95 % interval, perplexity, lm_accuracy, sop_loss and sop_accuracy, and counts.

    ``dataset``: samples by index. Without labels of the sentence order there are no sop_loss and
    sop_accuracy. Losses are means in nats over
    the masked tokens, or over the samples. ``documents``: integers [samples], the document of each sample;
    None: each has its own. The interval is a bootstrap over the documents, because samples of one document,
    or of one text with other masks, are not independent. Raises InputError when no token is masked.
    """
    parts: list[np.ndarray] = []
    with CountProgress(len(dataset), "sample") as progress:
        for first in range(0, len(dataset), batch_size):
            numbers = range(first, min(first + batch_size, len(dataset)))
            samples = [dataset[number] for number in numbers]
            parts.append(_sum_samples(model, collate(samples, pad_id=pad_id, max_seq_len=max_seq_len)))
            progress.advance(len(samples))
    sums = np.concatenate(parts)
    loss, hits, tokens, order_loss, order_hits, ordered = sums.sum(axis=0).tolist()
    if not tokens:
        raise InputError(
            f"no token of the {len(sums)} samples is masked, so there is no loss; correct --masking_fn"
        )
    lm_loss = loss / tokens
    if documents is None:
        documents = np.arange(len(sums))
    interval = _bootstrap_interval(sums, documents, bootstrap) if bootstrap else None
    return {
        "lm_loss": lm_loss,
        **({} if interval is None else {"lm_loss_interval": interval}),
        "perplexity": perplexity_of(lm_loss),
        "lm_accuracy": hits / tokens,
        **({"sop_loss": order_loss / ordered, "sop_accuracy": order_hits / ordered} if ordered else {}),
        "masked_tokens": int(tokens),
        "samples": len(sums),
        "documents": len(np.unique(documents)),
    }


def _sum_samples(model: Any, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return loss, hits and number of each sample's masked tokens, then of its sentence order, [B, 6]."""
    import paddle
    from paddle.nn import functional as F

    with paddle.no_grad():
        fed = {name: paddle.to_tensor(batch[name]) for name in ("input_ids", "token_type_ids")}
        outputs = model(**fed, masked_positions=paddle.to_tensor(batch["masked_positions"]))
        found = []
        for logits, name in zip(outputs, ("masked_lm_labels", "next_sentence_labels")):
            labels = paddle.to_tensor(batch[name])
            losses = F.cross_entropy(logits, labels, ignore_index=NO_LABEL, reduction="none")
            hits = logits.numpy().argmax(axis=-1) == batch[name]
            found.append((losses.numpy().reshape(-1), hits, batch[name] != NO_LABEL))
    count, length = batch["input_ids"].shape
    places = (batch["masked_positions"] // length, np.arange(count))
    columns = []  # of each sample: loss, hits and number of the labelled items
    for (losses, hits, labelled), place in zip(found, places):
        for value in (losses, hits, np.ones(len(labelled))):
            numbers = value[labelled].astype(np.float64)
            columns.append(np.bincount(place[labelled], numbers, minlength=count))
    return np.stack(columns, axis=1)


def _bootstrap_interval(sums: np.ndarray, documents: np.ndarray, resamples: int) -> list[float]:
    _, of_document = np.unique(documents, return_inverse=True)
    losses, tokens = (np.bincount(of_document, sums[:, column]) for column in (0, 2))
    rng = np.random.default_rng(SEED)
    means = []
    for _ in range(resamples):
        drawn = rng.integers(len(losses), size=len(losses))
        means.append(losses[drawn].sum() / max(tokens[drawn].sum(), 1))
    return np.percentile(means, [2.5, 97.5]).tolist()


logger = logging.getLogger(__name__)

ALL = "all"
PRINTED_METRICS = ("lm_loss", "perplexity", "lm_accuracy", "sop_loss", "sop_accuracy")


@dataclass(frozen=True)
class EvaluateMlmConfig(DeviceFlag, OverwriteFlag, MaskingFlags):
    """Measure how well a pretrained model predicts masked tokens and sentence order of held-out text.

    The samples and their masks depend only on the corpus and these flags: every model with its vocabulary
    gets the same samples.
    """

    EXAMPLE = "--model_path output --input_dir data"
    NEEDS = TRAINING

    model_path: str = model_folder_option(
        help="a built-in name, a pretrained folder, a checkpoint, or the output folder of a run"
    )
    input_dir: str = data_option(help="folder holding PREFIX_ids.npy and PREFIX_idx.npz", reads="FOLDER")
    output_file: str = data_option(
        "", help="JSON file to keep losses, accuracies and a confidence interval; empty: none", writes="FILE"
    )
    split: str = data_option("949,50,1", help="shares of the documents for training, validation, test")
    part: Literal["train", "valid", "test", "all"] = data_option(
        "valid", help="part of the documents to evaluate"
    )
    num_samples: int = evaluation_option(1000, help="samples of that part", unit="samples", at_least=1)
    max_seq_len: int = data_option(
        128, help="tokens per sample, [CLS] and [SEP] included", unit="tokens", at_least=8
    )
    batch_size: int = devices_option(32, help="samples in one forward pass", at_least=1)
    bootstrap: int = evaluation_option(
        1000,
        help="bootstrap resamples of the documents, for the confidence interval of lm_loss",
        unit="resamples",
        at_least=1,
    )
    seed: int = data_option(1234, help="seed of the samples and their masks", at_least=0)


def evaluate_mlm(config: EvaluateMlmConfig) -> dict[str, Any]:
    """Measure how well a pretrained model predicts masked tokens and sentence order of held-out text.

    The metrics are printed, kept in ``output_file``, and returned. Calling it again with the same flags does
    nothing. Losses are in nats: means over the masked tokens, and over the samples for the sentence order,
    which is omitted if the model has no head for it or --binary_head is false. Raises InputError for a corpus
    that does not fit the model, CheckpointError for weights without the head for masked tokens.
    """
    start_console(World())
    source = open_model(config.model_path, model_type="")
    corpus = open_corpus(find_corpus(config.input_dir, "--input_dir"))
    results = None
    if config.output_file:
        results = Results(
            "evaluate mlm",
            [Path(config.output_file)],
            {
                "model_path": [*source.weight_files, source.vocab_file],
                "input_dir": [corpus.paths.ids, corpus.paths.idx],
            },
            settings_of(config, "model_path", "input_dir", "output_file", "batch_size"),
            config.overwrite,
        )
    if results is not None and results.are_done():
        return json.loads(Path(config.output_file).read_text(encoding="utf-8"))
    dataset, pad_id = _build_dataset(config, corpus, source)
    first_sentences = dataset.sample_map[:, 0]
    documents = np.searchsorted(corpus.docs, first_sentences, side="right") - 1
    start_device(config.device, World())
    model = load_pretrained(source)
    measured = measure_masked_loss(
        model, dataset, pad_id, config.max_seq_len, config.batch_size, config.bootstrap, documents
    )
    if not (config.has_order and has_order_head(source, model)):
        measured = {name: value for name, value in measured.items() if not name.startswith("sop_")}
    if results is not None:
        with results.published() as (draft,):
            draft.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    say("  ".join(f"{name} {measured[name]:.4f}" for name in PRINTED_METRICS if name in measured))
    return measured


def _build_dataset(config: EvaluateMlmConfig, corpus: Corpus, source: ModelSource):
    models = source.read_tokenizer()
    check_model_fits(config, config.max_seq_len, models, source.spec)
    tokenizer = vocabulary_of([corpus], models)
    check_vocab_size(tokenizer, source.spec.vocab_size)
    documents = range(corpus.num_documents)
    if config.part != ALL:
        documents = document_ranges(config.split, corpus.num_documents)[config.part]
    if not documents:
        raise InputError(f"--split {config.split} leaves no document for {config.part}; name another --part")
    sizes = {name: getattr(config, name) for name in ("num_samples", "max_seq_len", "seed")}
    dataset = dataset_of(corpus, documents, tokenizer, config, **sizes)
    there = int(corpus.docs[documents.stop] - corpus.docs[documents.start])
    taken = int((dataset.sample_map[:, 1] - dataset.sample_map[:, 0]).sum())
    if taken > there:  # a pass over the documents has each sentence once
        logger.warning(
            "the %s documents of --part %s give fewer than --num_samples %d samples; their text is used "
            "%.1f times, with other masks",
            f"{len(documents):,}",
            config.part,
            config.num_samples,
            taken / there,
        )
    return dataset, tokenizer.pad_id
