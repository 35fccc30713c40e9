"""Find the n-grams of a corpus that form a unit, as a lexicon for the ERNIE-Gram objective.

python -m data_tools.build_ngrams --input_path data --vocab_file vocab.txt --output_file ngrams.txt

All n-grams of 2, 3, ... tokens are counted, exactly and in bounded memory, and scored by a t-test or by
pointwise mutual information (`data_tools/text/ngrams.py` has the formulas); the best of each length
form the lexicon whose n-grams `pretrain --ngram_lexicon` masks. The same corpus gives the same bytes.
"""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Dict, Iterator, List, Literal, Sequence, Tuple

import numpy as np

from data_tools.corpus.create_flags import VOCABULARY_HELP
from data_tools.corpus.format import Corpus, find_corpus, open_corpus
from data_tools.corpus.twin_vocab import vocabulary_of
from data_tools.text import ngrams
from data_tools.text.folder_tokenizer import AnyTokenizer, open_vocabulary, vocabulary_file
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import OverwriteFlag, data_option, file_option, path_option, speed_option
from ernie_pair.core.cli.standard_streams import as_called, with_standard_streams
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.core.process_pool import ordered_map
from ernie_pair.core.progress import CountProgress

TOKENS_AT_ONCE = 1 << 20
COUNTS_IN_MEMORY = 10_000_000  # n-grams of each length, about 500 MB; beyond that, counts go to disk (TMPDIR)


@dataclass(frozen=True)
class NgramsConfig(OverwriteFlag):
    """Write a lexicon of the n-grams in a corpus, for pretraining with the ERNIE-Gram objective."""

    EXAMPLE = "--input_path data --vocab_file vocab.txt --output_file ngrams.txt"

    input_path: str = path_option(
        help="the corpus: PREFIX of PREFIX_ids.npy and PREFIX_idx.npz, one of the two, or their folder"
    )
    vocab_file: str = file_option(help=VOCABULARY_HELP)
    output_file: str = data_option(help="the lexicon to write, ngrams.txt", stdout=True, writes="FILE")
    score: Literal["t", "pmi"] = data_option(
        "t",
        help="t: the t-statistic of the ERNIE-Gram paper, (p - q) / sqrt(p (1 - p) / N); pmi: ln(p / q). p "
        "is the relative frequency of an n-gram among the N windows of its length, q the product of the "
        "relative frequencies of its tokens",
    )
    sizes: str = data_option(
        "10000 10000", help="maximum number of n-grams of 2 tokens, of 3, and so on; one number per length"
    )
    min_count: int = data_option(
        5, help="drop n-grams that occur in the corpus fewer times than this", unit="times", at_least=1
    )
    workers: int = speed_option(
        1,
        unit="processes",
        at_least=1,
        help="counting processes; the lexicon does not depend on their number",
    )

    def __post_init__(self):
        super().__post_init__()
        self.most_of_lengths  # noqa: B018 - raises if they are not numbers

    @property
    def most_of_lengths(self) -> List[int]:
        """Return the maximum number of n-grams of 2 tokens, of 3, and so on."""
        words = self.sizes.replace(",", " ").split()
        if not words or not all(word.isdecimal() and 0 < int(word) < 2**31 for word in words):
            raise InputError(
                f"--sizes {self.sizes!r}: not whole numbers above 0, for n-grams of 2 tokens, of 3, ...; "
                'write it as in --sizes "10000 10000"'
            )
        return list(map(int, words))


@with_standard_streams
def build_ngrams(config: NgramsConfig) -> None:
    """Write the lexicon that ``config`` asks for.

    Raises InputError if the corpus cannot be used, is of another vocabulary, or has no frequent n-gram.
    """
    tokenizer = open_vocabulary(config.vocab_file)
    corpus = open_corpus(find_corpus(config.input_path, "--input_path"))
    tokenizer = vocabulary_of([corpus], tokenizer)
    longest = ngrams.longest_countable(tokenizer.vocab_size)
    if len(config.most_of_lengths) + 1 > longest:
        raise InputError(
            f"--sizes {config.sizes!r} asks for n-grams of {len(config.most_of_lengths) + 1} tokens; with a "
            f"vocabulary of {tokenizer.vocab_size} they may have {longest}: give at most {longest - 1}"
        )
    inputs: Dict[str, Sequence[Path]] = {
        "input_path": [path for path in corpus.paths if path.exists()],
        "vocab_file": [vocabulary_file(config.vocab_file)],
    }
    settings = {
        **settings_of(config, "input_path", "vocab_file", "output_file"),
        "sizes": config.most_of_lengths,
    }
    results = Results("build ngrams", [Path(config.output_file)], inputs, settings, config.overwrite)
    if results.are_done():
        return
    best = best_ngrams(corpus, tokenizer, config)
    if not any(len(scored.keys) for scored in best):
        raise InputError(
            f"{corpus.prefix}: no n-gram occurs in it {config.min_count} times; lower --min_count, or give a "
            "larger corpus"
        )
    about: Dict[str, object] = {name: settings[name] for name in ("score", "min_count", "sizes")}
    with results.published() as (draft,), open(draft, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(ngrams.lexicon_lines(best, tokenizer, about))
    counted = ", ".join(f"{len(s.keys)} of {n} tokens" for n, s in enumerate(best, start=ngrams.SHORTEST))
    sys.stderr.write(f"{as_called(config.output_file)}: n-grams by {config.score}: {counted}\n")


def best_ngrams(corpus: Corpus, tokenizer: AnyTokenizer, config: NgramsConfig) -> List[ngrams.Scored]:
    """Return the best n-grams of 2 tokens, of 3, ... by ``config.score``."""
    mosts = config.most_of_lengths
    token_counts = np.zeros(tokenizer.vocab_size, np.int64)
    of_lengths = {length: ngrams.NgramCounts(COUNTS_IN_MEMORY) for length in range(2, len(mosts) + 2)}
    count = partial(ngrams.count_text, tokens=ngrams.ngram_tokens(tokenizer), longest=len(mosts) + 1)
    with CountProgress(len(corpus.ids), "token") as progress:
        for size, counted, found in ordered_map(count, _texts_of(corpus), config.workers):
            token_counts += counted
            for length, of_length in found.items():
                of_lengths[length].add(of_length)
            progress.advance(size)
    best = []
    for most, (length, counts) in zip(mosts, of_lengths.items()):
        chosen = ngrams.NOTHING
        for keys, times in counts.blocks():
            often = times >= config.min_count
            keys, times = keys[often], times[often]
            scores = ngrams.score_ngrams(config.score, token_counts, length, counts.total, keys, times)
            chosen = ngrams.merge_best(chosen, ngrams.Scored(keys, scores, times), most)
        best.append(chosen)
    return best


def _texts_of(corpus: Corpus) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Yield the corpus in pieces of whole sentences, of TOKENS_AT_ONCE tokens where no sentence is longer."""
    begin = 0
    while begin < len(corpus):
        reach = corpus.starts[begin] + TOKENS_AT_ONCE
        end = max(begin + 1, int(np.searchsorted(corpus.starts, reach, side="right")) - 1)
        ids = np.array(corpus.ids[corpus.starts[begin] : corpus.starts[end]])
        yield ids, np.asarray(corpus.lens[begin:end])
        begin = end


if __name__ == "__main__":
    run_command(build_ngrams, NgramsConfig)
