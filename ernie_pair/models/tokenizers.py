"""The files of a model's tokenizer, read and written.

vocab.txt, tokenizer_config.json                                   cut by ERNIE's rule, `WordPiece`
tokenizer.json, tokenizer_config.json, vocab.txt of word pieces    of a published folder: its own rule

For transformers ERNIE's rule is written as a tokenizer.json. The rule of each character, a table there, is a
class of a regular expression here: what vanishes is taken out, what stands alone and what is space splits,
and the WordPiece model cuts the words between. "[MASK]", "[SEP]" and their like in a text are text where
tokenizer_config.json says split_special_tokens.
"""

from pathlib import Path
from typing import Dict, List

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece as WordCutter

from data_tools.text.characters import category
from data_tools.text.folder_tokenizer import (
    FAST_TOKENIZER,
    KEPT,
    OWN_CLASS,
    SPECIAL_TOKENS,
    AnyTokenizer,
    open_folder_tokenizer,
    read_settings,
)
from data_tools.text.wordpiece import (
    ALONE,
    COMPOSITE,
    CONTROL_TOKENS,
    MAX_WORD_LENGTH,
    SPACE,
    VANISHES,
    WordPiece,
    character_kinds,
    read_tokens,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import shown
from ernie_pair.models.spec import TOKENIZER, VOCAB, ModelSpec, json_bytes, tokenizer_json

NO_LENGTH = int(1e30)  # what transformers writes where a tokenizer has no longest text
UNUSED = "[unused of "  # begins the name of an id whose token stands twice
SURROGATES = slice(0xD800, 0xE000)  # no text of `tokenizers` holds one
NUM_STRINGS = 2000
HINT = "copy the model's folder again"


def read_tokenizer(vocab_file: Path, spec: ModelSpec) -> AnyTokenizer:
    """Open the tokenizer of ``spec`` in one of TOKENIZER_FILES. Raises InputError when it is damaged."""
    if spec.tokenizer.uses_hf_tokenizer:
        return open_folder_tokenizer(vocab_file, spec.family)
    return WordPiece.from_file(vocab_file, spec.lower_case)


def tokenizer_files(vocab_file: Path, spec: ModelSpec, max_seq_len: int = 0) -> Dict[str, bytes]:
    """Return {name: content} of what a model folder holds of its tokenizer.

    ``max_seq_len``: tokens per pair in training, which tokenizer_config.json remembers; 0: it does not.
    """
    if not spec.tokenizer.uses_hf_tokenizer:
        settings = tokenizer_json(spec.family, spec.lower_case, max_seq_len)
        return {VOCAB: own_vocabulary(vocab_file, spec), TOKENIZER: json_bytes(settings)}
    tokenizer = open_folder_tokenizer(vocab_file, spec.family)
    found = read_settings(vocab_file.parent, spec.family)
    settings = {key: found[key] for key in KEPT if key in found}
    settings.update({"model_max_length": max_seq_len} if max_seq_len else {})
    is_json = vocab_file.name == FAST_TOKENIZER and not tokenizer.is_extended
    rule = vocab_file.read_bytes() if is_json else tokenizer.to_json().encode()
    files = {FAST_TOKENIZER: rule, TOKENIZER: json_bytes(settings)}
    if tokenizer.is_word_piece:
        files[VOCAB] = "".join(f"{token}\n" for token in tokenizer.tokens).encode()
    return files


def hf_tokenizer_files(vocab_file: Path, spec: ModelSpec, max_seq_len: int) -> Dict[str, bytes]:
    """Return {name: content} of what a folder of transformers holds of its tokenizer; see `tokenizer_files`.

    ERNIE's rule is a tokenizer.json, under the class that takes it as it is: BertTokenizer cuts symbols
    otherwise. Control tokens in a text are text.
    """
    if spec.tokenizer.uses_hf_tokenizer:
        return tokenizer_files(vocab_file, spec, max_seq_len)
    tokenizer = WordPiece(read_tokens(vocab_file)[: spec.vocab_size], spec.lower_case)
    special = {f"{token.strip('[]').lower()}_token": token for token in CONTROL_TOKENS}
    settings = {
        "tokenizer_class": OWN_CLASS,
        "split_special_tokens": True,
        "do_lower_case": tokenizer.lower_case,
        "model_max_length": max_seq_len or NO_LENGTH,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **special,
    }
    return {
        VOCAB: own_vocabulary(vocab_file, spec),
        FAST_TOKENIZER: build_fast_tokenizer(tokenizer).to_str(pretty=True).encode(),
        TOKENIZER: json_bytes(settings),
        SPECIAL_TOKENS: json_bytes(special),
    }


def own_vocabulary(vocab_file: Path, spec: ModelSpec) -> bytes:
    """Return the lines of a vocab.txt that the model has rows for; others mark corpus words."""
    return b"".join(vocab_file.read_bytes().splitlines(keepends=True)[: spec.vocab_size])


def copy_tokenizer(vocab_file: Path, spec: ModelSpec, folder: Path) -> None:
    """Write the files of a model's tokenizer into another folder, unchanged where ERNIE's rule holds."""
    if spec.tokenizer.uses_hf_tokenizer:
        files = tokenizer_files(vocab_file, spec, spec.trained_length)
    else:
        sources = {VOCAB: vocab_file, TOKENIZER: vocab_file.parent / TOKENIZER}
        files = {name: path.read_bytes() for name, path in sources.items() if path.is_file()}
    for name, content in files.items():
        (folder / name).write_bytes(content)


def check_vocabulary(tokenizer_file: Path, vocab_file: Path, spec: ModelSpec) -> None:
    """Raise InputError when a vocab.txt beside a tokenizer.json has other tokens for its ids."""
    tokens, vocab = read_tokens(vocab_file), read_tokenizer(tokenizer_file, spec).vocab
    for token, index in vocab.items():
        if index < len(tokens) and tokens[index] != token and not token.startswith(UNUSED):
            raise InputError(
                f"{tokenizer_file}: token {index} is {shown(token)}, and not in {VOCAB}, which has "
                f"{shown(tokens[index])} there; {HINT}"
            )


def check_cutting(folder: Path, lower_case: bool) -> None:
    """Raise InputError when a tokenizer.json of this package makes other ids than the vocab.txt beside it.

    Compared are the ids of every assigned character between two letters, and of random strings.
    """
    path = folder / FAST_TOKENIZER
    if not path.is_file():
        return
    ours = WordPiece.from_file(folder / VOCAB, lower_case)
    theirs = open_folder_tokenizer(path).without_control_tokens()
    if theirs.to_json() == build_fast_tokenizer(ours).to_str(pretty=True):
        return
    points = (point for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    letters = [chr(point) for point in points if category(chr(point)) not in ("Cn", "Co")]
    rng, picked = np.random.default_rng(0), np.array(letters)
    texts = [f"a{letter}b" for letter in letters]
    texts += ["".join(rng.choice(picked, size)) for size in rng.integers(1, 20, NUM_STRINGS).tolist()]
    for text, mine, other in zip(texts, ours.encode_batch(texts), theirs.encode_batch(texts)):
        if mine != other:
            raise InputError(
                f"{path}: it cuts {shown(text)} into other tokens than {VOCAB} does by ERNIE's rule; {HINT}"
            )


def build_fast_tokenizer(tokenizer: WordPiece) -> Tokenizer:
    """Return the tokenizer that makes ``tokenizer``'s ids in transformers; a pair: [CLS] a [SEP] b [SEP]."""
    kinds = character_kinds(tokenizer.lower_case).copy()
    kinds[SURROGATES] = SPACE + len(CONTROL_TOKENS)  # of no kind
    vanishing, space = _character_class(kinds == VANISHES), _character_class(kinds == SPACE)
    alone = _character_class((kinds == ALONE) | (kinds == COMPOSITE))
    # The id of a token that occurs twice, whose later id is used, gets a name. No text is cut into it:
    # brackets stand alone.
    holes = set(range(tokenizer.vocab_size)) - set(tokenizer.vocab.values())
    vocab = {**tokenizer.vocab, **{f"{UNUSED}{index}]": index for index in sorted(holes)}}
    made = Tokenizer(WordCutter(vocab, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_LENGTH))
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


def _character_class(is_in: np.ndarray) -> str:
    """Return the regular expression of the characters for which ``is_in``, bool [0x110000], is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], is_in.astype(np.int8), [0]])))
    spans = zip(edges[0::2].tolist(), (edges[1::2] - 1).tolist())
    ranges = (f"\\x{{{a:X}}}" if a == b else f"\\x{{{a:X}}}-\\x{{{b:X}}}" for a, b in spans)
    return f"[{''.join(ranges)}]"
