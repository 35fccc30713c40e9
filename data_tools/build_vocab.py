"""Build a vocab.txt from text, in the layout of ERNIE 1.0, or add '##' twins to one.

python -m data_tools.build_vocab --input_path data/baike.jsonl --output_file vocab.txt --vocab_size 18000
python -m data_tools.build_vocab --add_twins_to ernie-3.0/vocab.txt --output_file twins.txt

[PAD] [CLS] [SEP] [MASK], the characters by frequency, the pieces of Latin words and numbers, the '##'
form of every Chinese character, letter and digit, [UNK]. The same text gives the same bytes.

ERNIE 3.0 has no '##X' for a Chinese character X, so a corpus cannot mark its words. The twins are appended,
so that no id changes its meaning, and are for the corpus alone: masking turns them into X again.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Dict, List, Set

from tokenizers import Tokenizer
from tokenizers.models import WordPiece as WordPieceModel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from data_tools.corpus import create_flags
from data_tools.corpus.twin_vocab import with_twins
from data_tools.text.characters import is_letter_or_digit
from data_tools.text.file_content import report_encodings
from data_tools.text.text_files import DOCUMENTS, RAW, LineRules, decoded, json_text, list_inputs
from data_tools.text.texts import LineBatch, line_batches
from data_tools.text.wordpiece import CONTINUATION, CONTROL_TOKENS, WordPiece, is_cjk, word_shapes
from ernie_pair.core.cli.cli import run_command
from ernie_pair.core.cli.options import OverwriteFlag, check_unset, data_option, defaults_of, path_option
from ernie_pair.core.cli.standard_streams import as_called, with_standard_streams
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.results import Results, settings_of
from ernie_pair.core.process_pool import ordered_map
from ernie_pair.core.progress import Progress, say

_REPEATED = 1000


@dataclass(frozen=True)
class VocabConfig(create_flags.LineFlags, OverwriteFlag):
    """Build a vocab.txt from text, or add '##' twins to an existing one."""

    EXAMPLE = "--input_path baike.jsonl --output_file vocab.txt --vocab_size 18000"

    input_path: str = path_option(
        "",
        help="a .txt or .jsonl file, plain, .gz or .zst, or a folder of them (two levels), or several of "
        "these with commas between",
        stdin=(".txt", ".jsonl"),
    )
    add_twins_to: str = path_option(
        "",
        help="instead of --input_path: a vocab.txt to copy, with '##' twins appended for the Chinese "
        "characters that have none. Create corpora with the copy, so that their words are marked; the model "
        "keeps its own vocab.txt, vocab_size and weights, because it never reads the twins",
    )
    output_file: str = data_option(help="the vocab.txt to write", stdout=True, writes="FILE")
    vocab_size: int = create_flags.text_option(
        18000,
        help="maximum number of tokens, including control tokens",
        unit="tokens",
        above=len(CONTROL_TOKENS),
    )
    min_count: int = create_flags.text_option(
        2,
        help="characters and pieces that occur fewer times than this get no token",
        unit="times",
        at_least=1,
    )

    def __post_init__(self):
        super().__post_init__()
        if bool(self.input_path) == bool(self.add_twins_to):
            raise InputError("give --input_path (text) or --add_twins_to (a vocabulary), one of the two")
        if self.add_twins_to:
            fault = " is about text, which --add_twins_to does not read; leave one of them out"
            check_unset(self, defaults_of(self, "text"), fault)


@with_standard_streams
def build_vocab(config: VocabConfig) -> None:
    """Build a vocabulary from text, and write its vocab.txt.

    Raises InputError for whatever the user can fix.
    """
    output = Path(config.output_file)
    if config.add_twins_to:
        _add_twins(Path(config.add_twins_to), output, config.overwrite)
        return
    inputs = list_inputs(config.input_path, (*RAW, *DOCUMENTS), apart_from=[output])
    settings = settings_of(config, "input_path", "add_twins_to", "output_file")
    results = Results("build vocab", [output], {"input_path": inputs}, settings, config.overwrite)
    if results.are_done():
        return
    report_encodings(inputs)
    shapes: Counter = Counter()
    with Progress(inputs, log_interval=0) as progress:
        batches = line_batches(inputs, progress.read, rules=config.line_rules)
        for counts in ordered_map(partial(_count_batch, config.line_rules), batches, config.workers):
            shapes.update(counts)
    if not shapes:
        raise InputError(f"{config.input_path}: no text; give an input that contains some")
    tokens = vocabulary_of(shapes, config.vocab_size, config.min_count)
    _write(results, tokens)
    known, num_words = set(tokens), sum(shapes.values())
    covered = sum(
        count
        for shape, count in shapes.items()
        if known.issuperset([shape[0], *(CONTINUATION + character for character in shape[1:])])
    )
    say(
        f"{as_called(str(output))}: {len(tokens)} tokens from {counted(len(inputs), 'file')}; they cover "
        f"{100 * covered / num_words:.2f} % of {num_words} characters and words",
        sys.stderr,
    )


def _add_twins(source: Path, output: Path, overwrite: bool) -> None:
    results = Results("build vocab", [output], {"add_twins_to": [source]}, {}, overwrite)
    if results.are_done():
        return
    tokenizer = WordPiece.from_file(source)
    tokens = with_twins(tokenizer).tokens
    num_twins = len(tokens) - tokenizer.vocab_size
    if not num_twins:
        raise InputError(f"{source}: no Chinese character without a '##' twin; use it as it is")
    _write(results, tokens)
    say(
        f"{as_called(str(output))}: the {tokenizer.vocab_size} tokens of {source} and {num_twins} '##' "
        f"twins, for corpora only; the model keeps its vocab.txt and its {tokenizer.vocab_size} ids",
        sys.stderr,
    )


def _write(results: Results, tokens: List[str]) -> None:
    with results.published() as (draft,):
        draft.write_bytes("".join(token + "\n" for token in tokens).encode("utf-8"))


def vocabulary_of(shapes: Dict[str, int], vocab_size: int, min_count: int) -> List[str]:
    """Return the tokens for text that consists of ``shapes``, in the order of their ids.

    ``shapes``: {shape of a word (`wordpiece.word_shapes`): how often it occurs}. What occurs less than
    ``min_count`` times gets no token, and there are at most ``vocab_size`` of them, control tokens
    included. The pieces of longer words are those that `WordPieceTrainer` of `tokenizers` finds.
    """
    counts: Counter = Counter()
    joined: Set[str] = set()
    for shape, count in shapes.items():
        for character in shape:
            counts[character] += count
        joined.update(shape if len(shape) > 1 or any(map(is_letter_or_digit, shape)) else "")
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    room = vocab_size - len(CONTROL_TOKENS)
    singles, continued = [], []
    for character in ranked:
        goes_on = character in joined or is_cjk(character)
        if counts[character] < min_count or room < 1 + goes_on:
            break
        singles.append(character)
        continued += [CONTINUATION + character] * goes_on
        room -= 1 + goes_on
    tokenizer = _train_pieces(shapes, [*singles, *continued], room, min_count)
    return [*CONTROL_TOKENS[:4], *singles, *tokenizer, *continued, CONTROL_TOKENS[4]]


def _train_pieces(shapes: Dict[str, int], alphabet: List[str], room: int, min_count: int) -> List[str]:
    spelled = set(alphabet).issuperset
    words = {shape: count for shape, count in sorted(shapes.items()) if len(shape) > 1 and spelled(shape)}
    if not words or room < 1:
        return []
    # Given in advance, the alphabet has fixed ids; collected from the words, it would have the order
    # of a hash table, and ties between pieces would be broken differently in every process.
    trainer = WordPieceTrainer(
        vocab_size=room + len(alphabet),
        min_frequency=min_count,
        special_tokens=alphabet,
        limit_alphabet=0,
        show_progress=False,
    )
    tokenizer = Tokenizer(WordPieceModel(unk_token=CONTROL_TOKENS[4]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    lines = (
        " ".join([word] * min(_REPEATED, count - begin))
        for word, count in words.items()
        for begin in range(0, count, _REPEATED)
    )
    tokenizer.train_from_iterator(lines, trainer)
    vocab = tokenizer.get_vocab()
    return [token for token in sorted(vocab, key=vocab.__getitem__) if token not in set(alphabet)][:room]


def _count_batch(rules: LineRules, batch: LineBatch) -> Counter:
    counts: Counter = Counter()
    read = json_text if batch.is_json else decoded
    for number, line in batch.numbered():
        if line.strip():
            counts.update(word_shapes(read(batch.path, number, line, rules)))
    return counts


if __name__ == "__main__":
    run_command(build_vocab, VocabConfig)
