"""ernie-pair evaluate-mlm --model_path output --input_dir data: its masked loss on held-out text."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Literal, Sequence

from data_tools.base.errors import InputError
from data_tools.base.options import option, refuse_empty
from data_tools.corpus.format import Corpus
from data_tools.corpus.megatron import find_corpus, open_corpus
from data_tools.corpus.splits import document_ranges
from data_tools.corpus.twin_vocab import refuse_ids_beyond, vocabulary_of
from data_tools.ernie_dataset import ErnieDataset, masking_rule
from data_tools.files.results import Results, files_of, settings_of
from data_tools.samples.masking_flags import MaskingFlags
from data_tools.samples.masking_plugin import load_masking_fn
from data_tools.samples.sample_map import build_sample_map
from data_tools.text.wordpiece import WordPiece
from ernie_pair.device.device import default_device, start_device
from ernie_pair.model_files.source import ModelSource, open_model
from ernie_pair.pretrain.filling.masked_loss import Asking, measure_masked_loss
from ernie_pair.pretrain.filling.pretrained_model import has_order_head, load_pretrained
from ernie_pair.processes.world import World

ALL = "all"
SHOWN = ("lm_loss", "perplexity", "lm_accuracy", "sop_loss", "sop_accuracy")


@dataclass(frozen=True)
class EvaluateMlmConfig(MaskingFlags):
    """Measure how well a pretrained model predicts the masked tokens of held-out text, and its order.

    The samples and their masks follow from the corpus and these flags alone: every model of its vocabulary
    is asked the same.
    """

    EXAMPLE = "--model_path output --input_dir data --output_file masked_loss.json"

    model_path: str = option(
        help="a built-in name, a pretrained folder, a checkpoint, or the OUT of a run", group="model"
    )
    input_dir: str = option(help="folder holding PREFIX_ids.npy and PREFIX_idx.npz", group="data")
    output_file: str = option(help="JSON goes here: losses, accuracies, an interval", group="data")
    split: str = option(
        "949,50,1", help="shares of the documents for training, validation, test", group="data"
    )
    part: Literal["train", "valid", "test", "all"] = option(
        "valid", help="which of them is asked about", group="data"
    )
    num_samples: int = option(
        1000, help="samples of that part", group="evaluation", unit="samples", at_least=1
    )
    max_seq_len: int = option(
        128, help="tokens per sample, [CLS] and [SEP] included", group="data", unit="tokens", at_least=8
    )
    batch_size: int = option(32, help="samples in one forward pass", group="devices", at_least=1)
    bootstrap: int = option(
        1000, help="resamples for the interval of lm_loss", group="evaluation", unit="resamples", at_least=1
    )
    seed: int = option(1234, help="of the samples and their masks", group="data", at_least=0)
    overwrite: bool = option(False, help="replace another result that is there", group="data")
    device: Literal["cpu", "gpu"] = option(default_device(), help="where to run", group="devices")

    def __post_init__(self):
        super().__post_init__()
        refuse_empty(self, "output_file")


def evaluate_mlm_command(config: EvaluateMlmConfig) -> None:
    """Write what `evaluate_mlm` measures. Raises an ErniePairError as it does."""
    evaluate_mlm(config)


def evaluate_mlm(config: EvaluateMlmConfig) -> Dict[str, Any]:
    """Write what was measured, print and return it; the same command again has nothing to do.

    Losses are means in nats over the masked tokens, and over the samples for the order of their segments,
    which is left out where the model has no head for it or --binary_head is false. Raises InputError for
    a corpus that does not fit the model, CheckpointError for weights without the head for masked tokens.
    """
    source = open_model(config.model_path, model_type="")
    corpus = open_corpus(find_corpus(config.input_dir, "--input_dir"))
    results = _results(config, source)
    if results.are_done():
        return json.loads(Path(config.output_file).read_text(encoding="utf-8"))
    dataset, pad_id = _held_out(config, corpus, source)
    start_device(config.device, World())
    model = load_pretrained(source)
    asking = Asking(config.max_seq_len, config.batch_size, config.bootstrap)
    measured = measure_masked_loss(model, dataset, pad_id, asking)
    if not (config.binary_head and has_order_head(source, model)):
        measured = {name: value for name, value in measured.items() if not name.startswith("sop_")}
    with results.published() as (draft,):
        draft.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    print("  ".join(f"{name} {measured[name]:.4f}" for name in SHOWN if name in measured))
    return measured


def _results(config: EvaluateMlmConfig, source: ModelSource) -> Results:
    inputs: Dict[str, Sequence[Path]] = {
        "model_path": [*source.weight_files, source.vocab_file],
        "input_dir": [path for path in files_of(config.input_dir) if path.suffix in (".npy", ".npz")],
    }
    settings = settings_of(config, "model_path", "input_dir", "output_file", "batch_size")
    return Results("evaluate-mlm", [Path(config.output_file)], inputs, settings, config.overwrite)


def _held_out(config: EvaluateMlmConfig, corpus: Corpus, source: ModelSource):
    """Return the samples that are asked about, and the id of their padding."""
    if config.max_seq_len > source.spec.max_positions:
        raise InputError(
            f"--max_seq_len {config.max_seq_len} is above the {source.spec.max_positions} positions of "
            f"{source.name}; lower it"
        )
    tokenizer = vocabulary_of([corpus], WordPiece.from_file(source.vocab_file, source.spec.lower_case))
    refuse_ids_beyond(tokenizer, source.spec.vocab_size)
    documents = range(corpus.num_documents)
    if config.part != ALL:
        documents = document_ranges(config.split, corpus.num_documents)[config.part]
    if not documents:
        raise InputError(f"--split {config.split} leaves no document for {config.part}; name another --part")
    rows = build_sample_map(
        corpus.docs,
        corpus.lens,
        documents,
        num_samples=config.num_samples,
        seed=config.seed,
        **config.map_settings(config.max_seq_len),
    )
    rule = masking_rule(tokenizer, **config.rule_settings())
    masking_fn = load_masking_fn(config.masking_fn)
    dataset = ErnieDataset(
        corpus, rows, rule, seed=config.seed, binary_head=config.binary_head, masking_fn=masking_fn
    )
    return dataset, tokenizer.pad_id
