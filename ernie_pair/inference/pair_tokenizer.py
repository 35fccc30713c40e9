"""The tokenizer of a model as Python offers it: pairs of texts to ids as training makes them, and back."""

from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union
from unicodedata import east_asian_width

import numpy as np

from data_tools.text.folder_tokenizer import AnyTokenizer
from ernie_pair.core.cli.options import check_whole_numbers
from ernie_pair.core.errors import InputError, counted
from ernie_pair.core.files.atomic_files import published
from ernie_pair.inference.token_rows import encode_single_texts, encode_texts, open_tokenizer
from ernie_pair.models.source import ModelSource, open_model
from ernie_pair.models.spec import MIN_PAIR_LENGTH
from ernie_pair.models.tokenizers import tokenizer_files

Texts = Union[str, Sequence[str]]


class ShownPair(NamedTuple):
    """A pair as a model reads it; printed, it is a few lines.

    ``tokens``, ``input_ids`` and ``token_type_ids`` are as long as each other. ``cut``: the tokens at the end
    of the first and of the second text that ``max_seq_len`` leaves no room for.
    """

    tokens: List[str]
    input_ids: List[int]
    token_type_ids: List[int]
    cut: Tuple[List[str], List[str]]
    max_seq_len: int

    def __repr__(self) -> str:
        """Return the tokens above their ids and segments, and what was cut."""
        aligned = []
        for cells in zip(self.tokens, map(str, self.input_ids), map(str, self.token_type_ids)):
            widths = [sum(2 if east_asian_width(c) in "WF" else 1 for c in cell) for cell in cells]
            aligned.append([cell + " " * (max(widths) - width) for cell, width in zip(cells, widths)])
        names = ("tokens", "ids", "segments")
        lines = [f"{name:9} " + " ".join(cells).rstrip() for name, cells in zip(names, zip(*aligned))]
        gone = [
            f"{counted(len(tokens), 'token')} of the {which} text ({' '.join(tokens)})"
            for which, tokens in zip(("first", "second"), self.cut)
            if tokens
        ]
        cut = f"cut to {self.max_seq_len} tokens, without {' and '.join(gone)}" if gone else "nothing cut"
        return "\n".join([f"{counted(len(self.tokens), 'token')}, {cut}", *lines])


class PairTokenizer:
    """The tokenizer of the model in a folder, or of a built-in name: ids as `PairTrainer` makes them.

        from ernie_pair import PairTokenizer

        tokenizer = PairTokenizer("output/best")
        row = tokenizer("怎么开户", "如何开户")  # {"input_ids": [...], "token_type_ids": [...]}
        print(tokenizer.convert_ids_to_tokens(row["input_ids"]))

    Pairs are cut to ``max_seq_len`` tokens, 0: as many as the model was trained with. Raises InputError when
    there is no such model, or it has fewer positions.
    """

    def __init__(self, model: Union[str, Path, ModelSource], max_seq_len: int = 0):
        check_whole_numbers(0, max_seq_len=max_seq_len)
        if isinstance(model, (str, Path)):
            model = open_model(str(model), model_type="", from_scratch=True)
        self.vocab_file, self.spec = model.vocab_file, model.spec
        self.max_seq_len = max_seq_len or model.spec.inference_length
        self.tokenizer: AnyTokenizer = open_tokenizer(self.vocab_file, self.spec, self.max_seq_len)

    def __len__(self) -> int:
        """Return the number of ids."""
        return self.tokenizer.vocab_size

    @property
    def pad_token_id(self) -> int:
        """Return the id that fills the end of a shorter row."""
        return self.tokenizer.pad_id

    @property
    def pad_token_type_id(self) -> int:
        """Return the token type of padding."""
        return 0

    def __call__(
        self,
        text: Texts,
        text_pair: Optional[Texts] = None,
        max_seq_len: int = 0,
        *,
        max_length: int = 0,
        truncation: bool = True,
    ) -> Dict[str, Any]:
        """Return {"input_ids": [...], "token_type_ids": [...]} of a pair or a text, without padding.

        Lists of texts give lists of such lists. ``max_seq_len``, or ``max_length``: 0 is that of this
        tokenizer. Raises InputError for what is no text, and without ``truncation`` for what is too long.
        """
        length = max_seq_len or max_length or self.max_seq_len
        is_one = isinstance(text, str)
        left = _texts_of([text] if is_one else text)
        if text_pair is None:
            rows = encode_single_texts(left, self.tokenizer, _enough(length))
        else:
            right = _texts_of([text_pair] if is_one else text_pair)
            if len(left) != len(right):
                raise InputError(f"{len(left)} first and {len(right)} second texts; give as many of both")
            rows = encode_texts(left, right, None, self.tokenizer, _enough(length))
        if rows.num_cut and not truncation:
            raise InputError(f"{counted(rows.num_cut, 'row')} above {length} tokens; pass truncation=True")
        found = rows.features(np.arange(len(rows)))
        if is_one:
            return found[0]
        return {name: [row[name] for row in found] for name in ("input_ids", "token_type_ids")}

    def convert_ids_to_tokens(self, ids: Union[int, Sequence[int]]) -> Union[str, List[str]]:
        """Return the token of an id, or of each of several. Raises InputError for an id without a token."""
        if isinstance(ids, (int, np.integer)):
            if not 0 <= ids < len(self):
                raise InputError(f"the id {ids} is outside of the vocabulary; its ids end at {len(self) - 1}")
            return self.tokenizer.tokens[int(ids)]
        return [str(self.convert_ids_to_tokens(int(each))) for each in ids]

    def convert_tokens_to_ids(self, tokens: Union[str, Sequence[str]]) -> Union[int, List[int]]:
        """Return the id of a token, or of each of several; that of an unknown one is [UNK]'s."""
        vocab, unknown = self.tokenizer.vocab, self.tokenizer.unk_id
        if isinstance(tokens, str):
            return vocab.get(tokens, unknown)
        return [vocab.get(token, unknown) for token in tokens]

    def show(self, text: str, text_pair: str, max_seq_len: int = 0) -> ShownPair:
        """Return how the model reads a pair: tokens, ids, segments, and what is cut."""
        left, right = _texts_of([text, text_pair])
        return show_pair(self.tokenizer, left, right, _enough(max_seq_len or self.max_seq_len))

    def save_pretrained(self, folder: Union[str, Path]) -> None:
        """Write the tokenizer's files into ``folder``, for PaddleNLP too. Raises MachineError."""
        files = tokenizer_files(self.vocab_file, self.spec, self.max_seq_len)
        with published(*(Path(folder) / name for name in files)) as drafts:
            for draft, content in zip(drafts, files.values()):
                draft.write_bytes(content)


def show_pair(tokenizer: AnyTokenizer, left: str, right: str, max_seq_len: int) -> ShownPair:
    """Return how a pair of texts is read with ``tokenizer``, cut to ``max_seq_len`` tokens."""
    rows = encode_texts([left], [right], None, tokenizer, max_seq_len)
    (found,) = rows.features(np.zeros(1, np.int64))
    before, between, after = tokenizer.pair_specials
    num_left = int(rows.heads[0]) - len(before) - 1
    num_right = len(found["input_ids"]) - num_left - len(before) - len(between) - len(after)
    tokens, texts = tokenizer.tokens, tokenizer.encode_batch([left, right])
    cut = [[tokens[i] for i in ids[kept:]] for ids, kept in zip(texts, (num_left, num_right))]
    shown = [tokens[i] for i in found["input_ids"]]
    return ShownPair(shown, found["input_ids"], found["token_type_ids"], (cut[0], cut[1]), max_seq_len)


def _texts_of(given: Any) -> List[str]:
    texts = [given] if isinstance(given, str) or not hasattr(given, "__iter__") else list(given)
    wrong = [each for each in texts if not isinstance(each, str)]
    if wrong or isinstance(given, str):
        found = repr((wrong or texts)[0])[:60]
        raise InputError(f"the tokenizer takes a text or a list of texts, not {found}; give one of these")
    return texts


def _enough(max_seq_len: int) -> int:
    """Return a length of rows. Raises InputError when it has no room for a token of each text."""
    check_whole_numbers(0, max_seq_len=max_seq_len)
    if max_seq_len < MIN_PAIR_LENGTH:
        raise InputError(f"max_seq_len={max_seq_len} is below {MIN_PAIR_LENGTH}; raise it")
    return max_seq_len
