"""ernie-pair inspect-data: see the samples that pretraining would read, before it does.

ernie-pair inspect-data --input_path train.tsv --vocab_file MODEL: the same for the pairs of fine-tuning.
"""

import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple

from data_tools.corpus.create_flags import VOCABULARY_HELP
from data_tools.corpus.format import Corpus, find_corpus, open_corpus
from data_tools.corpus.twin_vocab import vocabulary_of
from data_tools.samples.mask_report import ORDER_NAMES, MaskReport, marked_text, mask_report
from data_tools.samples.masking import MaskingFlags
from data_tools.samples.split_datasets import dataset_of
from data_tools.text.folder_tokenizer import open_vocabulary, vocabulary_file
from ernie_pair.core.cli.options import (
    Options,
    OverwriteFlag,
    check_unset,
    data_option,
    defaults_of,
    file_option,
    path_option,
)
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.pairs.data.encoded_pairs import open_pair_tokenizer, shown_pairs
from ernie_pair.pairs.data.pair_records import ColumnFlags
from ernie_pair.report.page import draw_picture

BAR = 40  # characters of the longest bar
JSON_FILE, PICTURE_FILE = "inspect.json", "inspect.png"


@dataclass(frozen=True)
class Inspected(Options):
    """A corpus and its vocabulary; a base on its own puts them first of all fields."""

    input_path: str = path_option(
        help="PREFIX of PREFIX_ids.npy and PREFIX_idx.npz, one of them, or their folder; or a file of pairs"
    )
    vocab_file: str = file_option(help=VOCABULARY_HELP)


@dataclass(frozen=True)
class InspectConfig(OverwriteFlag, ColumnFlags, MaskingFlags, Inspected):
    """Show samples of a corpus with their masks marked, and measure them; or show the tokens of pairs."""

    EXAMPLE = "--input_path data/baike --vocab_file vocab.txt --output_dir inspected"
    NEEDS = {"matplotlib": ""}

    output_dir: str = data_option(
        "",
        help=f"folder for {JSON_FILE} and {PICTURE_FILE}; empty: print to the terminal only",
        writes="FOLDER",
    )
    num_samples: int = data_option(2000, help="samples to measure", unit="samples", at_least=1)
    show: int = data_option(3, help="samples, or pairs, to print", unit="samples", at_least=0)
    max_seq_len: int = data_option(
        512, help="tokens per sample, [CLS] and [SEP] included", unit="tokens", at_least=8
    )
    seed: int = data_option(1234, help="another seed shows other samples", at_least=0)

    @property
    def is_of_pairs(self) -> bool:
        """Return whether a file of pairs is shown, and no corpus."""
        return Path(self.input_path).is_file() and Path(self.input_path).suffix not in (".npy", ".npz")

    def refuse_unused(self) -> None:
        """Raise InputError for a flag that is of a corpus where pairs are shown, or the other way round."""
        of, other = ("a corpus", "a file of pairs") if self.is_of_pairs else ("pairs", "a corpus")
        of_pairs, of_both = defaults_of(self, "rows"), {"show", "max_seq_len"}
        of_corpus = {i.name: i.default for i in fields(self) if i.default is not MISSING}
        of_corpus = {name: value for name, value in of_corpus.items() if name not in {*of_pairs, *of_both}}
        fault = f" is for {of}, and {self.input_path} is {other}; leave it out"
        check_unset(self, of_corpus if self.is_of_pairs else of_pairs, fault)


def inspect_data(config: InspectConfig) -> None:
    """Print the samples and the report; write the report and its picture below ``output_dir``.

    Of a file of pairs, print the first ones. Raises InputError when the corpus, the pairs or the vocabulary
    cannot be used.
    """
    config.refuse_unused()
    if config.is_of_pairs:
        pairs_tokenizer = open_pair_tokenizer(config.vocab_file, config.max_seq_len)
        for lines in shown_pairs(config, pairs_tokenizer):
            print(lines)
        return
    tokenizer = open_vocabulary(config.vocab_file)
    corpus = open_corpus(find_corpus(config.input_path, "--input_path"))
    tokenizer = vocabulary_of([corpus], tokenizer)
    inputs: Dict[str, Sequence[Path]] = {
        "input_path": list(corpus.paths),
        "vocab_file": [vocabulary_file(config.vocab_file)],
    }
    settings = settings_of(
        config, "input_path", "vocab_file", "output_dir", "show", *defaults_of(config, "rows")
    )
    outputs = [Path(config.output_dir, name) for name in (JSON_FILE, PICTURE_FILE)]
    results = Results("inspect-data", outputs, inputs, settings, config.overwrite)
    are_there = config.output_dir and results.are_done()
    # The samples that a run over all documents would start with.
    sizes = {name: getattr(config, name) for name in ("num_samples", "max_seq_len", "seed")}
    dataset = dataset_of(corpus, range(corpus.num_documents), tokenizer, config, **sizes)
    report = mask_report(dataset, tokenizer, range(config.num_samples), config.max_seq_len)
    if config.show:
        print("{A->B}: A is masked, the model sees B in its place; _ is [MASK]\n")
    for number in range(min(config.show, config.num_samples)):
        sample = dataset[number]
        order = ORDER_NAMES[sample.sop_label]
        print(f"sample {number}: {len(sample.input_ids)} tokens, {order}\n{marked_text(tokenizer, sample)}\n")
    print("\n".join(report_lines(report, corpus, config)))
    if config.output_dir and not are_there:
        with results.published() as (text, picture):
            content = json.dumps(report._asdict(), ensure_ascii=False, indent=1)
            text.write_text(f"{content}\n", encoding="utf-8")
            picture.write_bytes(_picture(report))
        print("wrote {} and {}".format(*results.given))


def report_lines(report: MaskReport, corpus: Corpus, config: InspectConfig) -> Iterator[str]:
    """Yield the lines of the report for the terminal."""
    sizes = f"{corpus.num_documents} documents, {len(corpus)} sentences, {len(corpus.ids)} tokens"
    yield f"corpus         {sizes}"
    yield f"samples        {report.samples}, {report.tokens} tokens, {report.masked} masked"
    yield f"mask rate      {report.mask_rate:.2%} of the tokens; {config.masked_lm_prob:.2%} asked for"
    yield "shown instead  " + ", ".join(f"{name} {share:.1%}" for name, share in report.shown.items())
    levels = (f"{name} {share:.1%} ({report.level_rates[name]:.1%})" for name, share in report.levels.items())
    yield "masked levels  " + ", ".join(levels) + "; in brackets: of all tokens of that level"
    yield "sentence order " + ", ".join(f"{name} {count}" for name, count in report.sentence_order.items())
    yield f"[UNK]          {report.unknown:.3%} of the tokens"
    yield f"padding        {report.padding:.1%} of a batch padded to {config.max_seq_len} tokens"
    yield f"few masks      {report.samples_with_few_masks} samples have less than half of the asked share"
    yield from (f"  sample {few['sample']}: {few['masked']} of {few['tokens']}" for few in report.few_masks)
    yield "masked words   " + ", ".join(f"{word} {count}" for word, count in report.top_masked_words)
    yield "masked spans, by their number of words"
    yield from _bars([(str(words), count) for words, count in report.ngrams.items()])
    yield "samples by length, tokens"
    yield from _bars([(f"{low}..", count) for low, count in report.lengths.items()])


def _bars(rows: List[Tuple[str, int]]) -> Iterator[str]:
    most = max((count for _, count in rows), default=1) or 1
    for name, count in rows:
        yield f"  {name:>6} {count:>8} {'#' * round(BAR * count / most)}".rstrip()


def _picture(report: MaskReport) -> bytes:
    def draw_lengths(axes) -> None:
        lows = list(report.lengths)
        width = 0.9 * (lows[1] - lows[0]) if len(lows) > 1 else 1
        axes.bar(lows, list(report.lengths.values()), width, align="edge")
        axes.set(xlabel="tokens", ylabel="samples")

    def draw_spans(axes) -> None:
        axes.bar(list(report.ngrams), list(report.ngrams.values()))
        axes.set(xlabel="words", ylabel="spans")

    def draw_rates(axes) -> None:
        axes.hist(report.mask_rates, bins=40)
        axes.set(xlabel="share of a sample", ylabel="samples")

    def draw_shown(axes) -> None:
        axes.bar_label(axes.bar(list(report.shown), list(report.shown.values())), fmt="{:.1%}")
        axes.margins(y=0.1)
        axes.set(ylabel="share")

    panels = [
        (f"length: {report.padding:.1%} padding", draw_lengths),
        ("masked spans", draw_spans),
        (f"mask rate: {report.mask_rate:.2%} of all tokens", draw_rates),
        ("shown in place of a masked token", draw_shown),
    ]
    return draw_picture(panels, 2, "png")
