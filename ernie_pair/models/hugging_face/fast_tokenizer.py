"""tokenizer.json: the tokenization of `WordPiece` in the format of the library `tokenizers`.

The rule of each character, a table there, is a class of a regular expression here: what vanishes is taken
out, what stands alone and what is space splits, and the WordPiece model cuts the words between.

"[MASK]", "[SEP]" and their like in a text are text where tokenizer_config.json says split_special_tokens.
"""

from typing import Dict, Iterable, List

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece as WordCutter

from data_tools.text.wordpiece import (
    ALONE,
    COMPOSITE,
    CONTROL_TOKENS,
    LONGEST_WORD,
    SPACE,
    VANISHES,
    WordPiece,
    character_kinds,
)

UNUSED = "[unused of "  # begins the name of an id whose token stands twice
SURROGATES = slice(0xD800, 0xE000)  # no text of `tokenizers` holds one


def build_fast_tokenizer(tokenizer: WordPiece) -> Tokenizer:
    """Return the tokenizer that makes ``tokenizer``'s ids in transformers; a pair: [CLS] a [SEP] b [SEP]."""
    kinds = character_kinds(tokenizer.lower_case).copy()
    kinds[SURROGATES] = SPACE + len(CONTROL_TOKENS)  # of no kind
    vanishing, space = _class_of(kinds == VANISHES), _class_of(kinds == SPACE)
    alone = _class_of((kinds == ALONE) | (kinds == COMPOSITE))
    made = Tokenizer(
        WordCutter(_without_holes(tokenizer), unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    )
    steps: List[normalizers.Normalizer] = [normalizers.Replace(Regex(vanishing), "")]
    if tokenizer.lower_case:  # accents are characters of their own after NFD
        steps += [normalizers.Lowercase(), normalizers.NFD(), normalizers.Replace(Regex(vanishing), "")]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(space), "removed"), pre_tokenizers.Split(Regex(alone), "isolated")]
    )
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)],
    )
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    return made


def _without_holes(tokenizer: WordPiece) -> Dict[str, int]:
    """Return the vocabulary with a name for the id of a token that occurs twice, whose later id is used.

    No text is cut into such a name: brackets stand alone.
    """
    used = set(tokenizer.vocab.values())
    holes = (index for index in range(tokenizer.vocab_size) if index not in used)
    return {**tokenizer.vocab, **{f"{UNUSED}{index}]": index for index in holes}}


def _class_of(is_in: np.ndarray) -> str:
    """Return the regular expression of the characters for which ``is_in``, bool [0x110000], is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_in.astype(np.int8), [0]])))
    return f"[{''.join(_ranges(zip(edges[0::2].tolist(), (edges[1::2] - 1).tolist())))}]"


def _ranges(spans: Iterable) -> Iterable[str]:
    for first, last in spans:
        yield f"\\x{{{first:X}}}" if first == last else f"\\x{{{first:X}}}-\\x{{{last:X}}}"
