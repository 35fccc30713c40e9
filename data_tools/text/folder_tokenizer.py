"""Encode text as the tokenizer of a model folder does, with the library `tokenizers`.

    tokenizer.json            any tokenizer of that library: word pieces, Unigram, BPE
    vocab.txt                 word pieces, cut by BERT's rule, which keeps symbols inside words
    sentencepiece.bpe.model   the pieces of XLM-RoBERTa

tokenizer_config.json beside it names the special tokens and, for BERT's classes, whether case and accents are
kept: it wins over tokenizer.json, as in transformers. Tokens are added in it (added_tokens_decoder,
additional_special_tokens), in special_tokens_map.json and in added_tokens.json; all are cut out first.
"""

import hashlib
import json
import re
from contextlib import contextmanager
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram
from tokenizers.models import WordPiece as WordCutter

from data_tools.text.tokenizer_bounds import fault_of_charsmap, fault_of_rules, fault_of_speed, patterns_of
from data_tools.text.wordpiece import (
    CONTINUATION,
    CONTROL_TOKENS,
    MAX_WORD_LENGTH,
    TokenizedText,
    WordPiece,
    find_twins,
    read_tokens,
)
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.atomic_files import read_regular
from ernie_pair.core.files.json_file import is_whole_number, read_json_object, shown
from ernie_pair.core.installation import import_optional

VOCAB, FAST_TOKENIZER, SETTINGS = "vocab.txt", "tokenizer.json", "tokenizer_config.json"
SENTENCE_PIECES = "sentencepiece.bpe.model"
TOKENIZER_FILES = (FAST_TOKENIZER, VOCAB, SENTENCE_PIECES)
SPECIAL_TOKENS, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"
MAX_BYTES, MAX_TOKENS = 64 << 20, 1 << 24
MAX_SEPARATORS = 2  # between two texts
# Where tokenizer_config.json names tokens that it adds, for transformers 4 and 5; and where it has their ids.
ADDITIONAL, DECODER = ("additional_special_tokens", "extra_special_tokens"), "added_tokens_decoder"
# By which a folder that transformers can load, and that this package wrote, is known again.
OWN_FAMILY, OWN_CLASS = "paddle_model_type", "PreTrainedTokenizerFast"
ROLES = ("pad", "cls", "sep", "mask", "unk")
BESIDE = ("pad", "mask")  # those that may be added beside the vocabulary
OF_SENTENCE_PIECES = {"pad": "<pad>", "cls": "<s>", "sep": "</s>", "mask": "<mask>", "unk": "<unk>"}
# Classes of transformers that cut words by BERT's rule, whatever tokenizer.json says of case.
BERT_CLASSES = ("Bert", "DistilBert", "Electra", "MobileBert", "SqueezeBert", "RetriBert", "LayoutLM")
_LOWER_CASED = "Electra DistilBert Roberta Albert".split()
CLASS_OF = {  # of a model_type whose folder names no class
    **dict.fromkeys("bert ernie nezha megatron-bert megatronbert".split(), "BertTokenizer"),
    **dict.fromkeys("xlm-roberta xlm_roberta".split(), "XLMRobertaTokenizer"),
    **{name.lower(): f"{name}Tokenizer" for name in _LOWER_CASED},
}
# What tokenizer_config.json says of the ids; the rest is for other libraries.
KEPT = (
    "tokenizer_class do_lower_case strip_accents tokenize_chinese_chars split_special_tokens add_prefix_space"
    " model_input_names bos_token eos_token pad_token cls_token sep_token mask_token unk_token"
).split()
CURE = "copy the model's folder again"
UNIGRAM = 1
# {message: {field: (number, type)}}; a type that is no message is one of protobuf's.
MESSAGES: Dict[str, Dict[str, Tuple[int, str]]] = {
    "Piece": {"piece": (1, "STRING"), "score": (2, "FLOAT")},
    "Trainer": {"model_type": (3, "INT32")},
    "Normalizer": {"precompiled_charsmap": (2, "BYTES")},
    "Model": {"pieces": (1, "Piece"), "trainer": (2, "Trainer"), "normalizer": (3, "Normalizer")},
}
MANY, DEFAULTS = ("pieces",), {"model_type": str(UNIGRAM)}
_HALF_CHARACTERS = re.compile("[\ud800-\udfff]")  # which `tokenizers` cannot take


class FolderTokenizer:
    """A tokenizer on the library `tokenizers`, with the interface of `WordPiece`.

    ``settings``: the content of tokenizer_config.json. ``text_specials`` are the ids before and after a
    single text, ``pair_specials`` those before, between and after two texts; ``has_segments``: the second of
    them has a token type of its own. Control tokens in a text are control ids, as for the folder's own
    library, unless ``settings`` say split_special_tokens.
    """

    truncation = "fast"  # of pairs that are too long, see `inference.token_rows.kept_lengths`

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: Mapping[str, Any],
        where: str,
        tokens: Sequence[str] = (),
        is_extended: bool = False,
    ):
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = settings.get("split_special_tokens") is True
        self._tokenizer, self.where, self.is_extended = tokenizer, where, is_extended
        self.vocab = tokenizer.get_vocab(with_added_tokens=True)
        missing = 1 + max(self.vocab.values(), default=-1) - len(tokens)
        self.tokens = [*tokens, *[""] * missing]
        self.vocab_size = len(self.tokens)
        for token, index in self.vocab.items():
            self.tokens[index] = token
        self.is_word_piece = isinstance(tokenizer.model, WordCutter)
        begins = CONTINUATION if self.is_word_piece else "\0"
        self.is_continuation = np.array([token.startswith(begins) for token in self.tokens])
        self.continuation_ids, self.base_ids = find_twins(self.tokens, self.vocab)
        normalizer = tokenizer.normalizer
        self.lower_case = normalizer is not None and normalizer.normalize_str("A") == "a"
        pair = tokenizer.encode("a", "b")
        self.text_specials, self.pair_specials = _parts_of(tokenizer.encode("a"), 1), _parts_of(pair, 2)
        around = [len(part) for part in (*self.text_specials, *self.pair_specials)]
        if around[:3] + around[4:] != [1, 1, 1, 1] or not 0 < around[3] <= MAX_SEPARATORS:
            raise InputError(
                f"{where}: it puts other special tokens around texts than [CLS] a [SEP] b [SEP] or "
                "<s> a </s></s> b </s>; take a model with one of these"
            )
        inside = [place for place, which in enumerate(pair.sequence_ids) if which is not None]
        gives_types = "token_type_ids" in (settings.get("model_input_names") or ["token_type_ids"])
        self.has_segments = gives_types and pair.type_ids[inside[-1]] != pair.type_ids[inside[0]]
        names = {role: _name_of(settings.get(f"{role}_token")) for role in ROLES}
        self.cls_id, self.sep_id = self.text_specials[0][0], self.pair_specials[1][0]
        usual = dict(zip(ROLES, CONTROL_TOKENS))
        usual = usual if usual["cls"] in self.vocab else OF_SENTENCE_PIECES
        self.pad_id, self.mask_id, self.unk_id = (
            self.vocab.get(names[role] or usual[role], -1) for role in ("pad", "mask", "unk")
        )
        self._of_roles = {names[role] or usual[role] for role in ROLES}
        if self.pad_id < 0:
            raise InputError(f"{where}: no {names['pad'] or usual['pad']} for padding; {CURE}")
        self.sha256 = self._identity()

    def encode(self, text: str) -> List[int]:
        """Encode ``text`` to its token ids, without special tokens around it."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> List[List[int]]:
        """Encode each of ``texts`` to its token ids, without special tokens around them."""
        with _panics_named(self.where):
            cut = self._tokenizer.encode_batch_fast(list(map(_whole, texts)), add_special_tokens=False)
        return [encoding.ids for encoding in cut]

    def tokenize_batch(self, texts: List[str]) -> List[TokenizedText]:
        """Cut each of ``texts``, as ``tokenize`` does."""
        with _panics_named(self.where):
            cut = self._tokenizer.encode_batch(list(map(_whole, texts)), False, False)
        offsets = [np.array(each.offsets, dtype=np.int32).reshape(-1, 2) for each in cut]
        ids = [np.array(each.ids, dtype=np.int32) for each in cut]
        return [TokenizedText(each, places[:, 0], places[:, 1]) for each, places in zip(ids, offsets)]

    def tokenize(self, text: str) -> TokenizedText:
        """Cut ``text`` into n pieces, in their order in the text: ids, starts and ends, each int32 [n]."""
        return self.tokenize_batch([text])[0]

    def without_control_tokens(self) -> "FolderTokenizer":
        """Return the tokenizer that takes "[MASK]" and its like in a text for text; a corpus needs it."""
        other = object.__new__(FolderTokenizer)
        other.__dict__.update(self.__dict__, _tokenizer=deepcopy(self._tokenizer))
        other._tokenizer.encode_special_tokens = True
        return other

    def to_json(self) -> str:
        """Return the content of a tokenizer.json."""
        return self._tokenizer.to_str(pretty=True)

    def _identity(self) -> str:
        """Return the SHA-256 of all that the ids depend on.

        Word pieces cut by BERT's rule are known by that, whichever file they came from; any other tokenizer
        by what the library writes of it.
        """
        state, split = self._tokenizer.to_str(), self._tokenizer.encode_special_tokens
        found = json.loads(state) if self.is_word_piece else {}
        if found and _cuts_as_bert(found):
            rule = [found["normalizer"], self.text_specials, self.pair_specials, self.has_segments, split]
            more = {token["content"] for token in found["added_tokens"]} - self._of_roles
            rule += [sorted(more)] if more else []
            named = "\n".join([*self.tokens, "", f"bert {json.dumps(rule, sort_keys=True)}"])
        else:
            named = f"{state} {split}"
        return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()


AnyTokenizer = Union[WordPiece, FolderTokenizer]


def open_folder_tokenizer(path: Path, model_type: str = "") -> FolderTokenizer:
    """Open one of TOKENIZER_FILES with the tokenizer_config.json beside it; BERT's rule cuts by a vocab.txt.

    ``model_type``: that of config.json, which says the class of a tokenizer whose files do not. Raises
    InputError when a file is damaged, or asks for another library.
    """
    settings = read_settings(path.parent, model_type)
    kind = str(settings.get("tokenizer_class") or "").replace("Fast", "").replace("Tokenizer", "")
    if settings.get("truncation_side", "right") != "right":
        raise InputError(
            f"{path.parent / SETTINGS}: truncation_side left is not supported; take another model"
        )
    tokens: List[str] = []
    if path.name == FAST_TOKENIZER:
        tokenizer = _read_json(path)
        if kind in BERT_CLASSES and isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
            tokenizer.normalizer = _bert_normalizer(settings, str(path.parent / SETTINGS))
    elif path.name == VOCAB:
        if kind not in BERT_CLASSES:
            raise InputError(
                f"{path}: a {settings.get('tokenizer_class')} does not cut words by vocab.txt alone; have "
                f"transformers write {FAST_TOKENIZER} into the folder: its tokenizer.save_pretrained"
            )
        tokens = read_tokens(path)
        tokenizer = _bert_tokenizer(tokens, settings, path)
    else:
        tokenizer = _read_sentence_pieces(path)
    try:
        with _panics_named(str(path)):
            is_extended = _add_tokens(tokenizer, path.parent, settings)
            return FolderTokenizer(tokenizer, settings, str(path), tokens, is_extended)
    except InputError:
        raise
    except Exception as error:  # the library raises plain Exceptions
        raise InputError(f"{path}: {' '.join(str(error).split())[:200]}; {CURE}") from None


def open_vocabulary(given: Union[str, Path]) -> AnyTokenizer:
    """Open the tokenizer that --vocab_file names, for a corpus: control tokens in a text are text.

    vocab.txt is cut by ERNIE's rule, tokenizer.json by its own; a folder stands for its tokenizer.json, or
    else for its vocab.txt, cut by BERT's rule if transformers wrote the model. Raises InputError.
    """
    path, model_type = Path(given), ""
    if path.is_dir():
        config = path / "config.json"
        found = read_json_object(config, CURE) if config.is_file() else {}
        if cuts_by_own_rule(path, found, is_their_config(found)):
            return WordPiece.from_file(path / VOCAB)
        path, model_type = find_tokenizer(path), str(found.get("model_type"))
    elif path.name == VOCAB or path.name not in TOKENIZER_FILES:
        return WordPiece.from_file(path)
    return open_folder_tokenizer(path, model_type).without_control_tokens()


def vocabulary_file(given: Union[str, Path]) -> Path:
    """Return the file that `open_vocabulary` reads for ``given``."""
    return find_tokenizer(Path(given)) if Path(given).is_dir() else Path(given)


def find_tokenizer(folder: Path) -> Path:
    """Return the first of TOKENIZER_FILES that is in a folder; vocab.txt if none is."""
    return next((folder / name for name in TOKENIZER_FILES if (folder / name).is_file()), folder / VOCAB)


def cuts_by_own_rule(folder: Path, config: Mapping[str, Any], is_theirs: bool) -> bool:
    """Return whether a model folder means ERNIE's rule by its vocab.txt, and `WordPiece` opens it.

    ``config``: the content of its config.json; ``is_theirs``: it is in the form of transformers. This package
    wrote the tokenizer of such a folder if it says so, names OWN_CLASS, and keeps do_lower_case.
    """
    if not is_theirs:
        return not (folder / FAST_TOKENIZER).is_file()
    if OWN_FAMILY not in config or not (folder / VOCAB).is_file():
        return False
    settings = read_settings(folder)
    return settings["tokenizer_class"] == OWN_CLASS and "do_lower_case" in settings


def is_their_config(config: Mapping[str, Any]) -> bool:
    """Return whether transformers, or this package for it, wrote a config.json, and PaddleNLP not again."""
    return "paddlenlp_version" not in config and not {"transformers_version", OWN_FAMILY}.isdisjoint(config)


def read_settings(folder: Path, model_type: str = "") -> Dict[str, Any]:
    """Return tokenizer_config.json with the special tokens beside it. Raises InputError if one is damaged."""
    beside, found = (_read_beside(folder / name) for name in (SPECIAL_TOKENS, SETTINGS))
    for key in ADDITIONAL:
        more = beside.pop(key, None)
        if more and DECODER not in found:  # which otherwise has all tokens
            found[key] = [
                *_listed(found.get(key), folder / SETTINGS),
                *_listed(more, folder / SPECIAL_TOKENS),
            ]
    found = {**beside, **found}
    kind = found.get("tokenizer_class")
    if not isinstance(kind, str):
        found["tokenizer_class"] = CLASS_OF.get(model_type, "")
    return found


def _read_beside(path: Path) -> Dict[str, Any]:
    return read_json_object(path, "correct it") if path.is_file() else {}


def _listed(tokens: Any, where: Path) -> List[Any]:
    """Return the tokens of a list, or of an object {role: token}."""
    if not isinstance(tokens, (list, dict, type(None))):
        raise InputError(f"{where}: {shown(tokens)} is no list of tokens; {CURE}")
    return list(tokens.values()) if isinstance(tokens, dict) else list(tokens or ())


def _add_tokens(tokenizer: Tokenizer, folder: Path, settings: Mapping[str, Any]) -> bool:
    """Add the tokens that files beside a tokenizer state, and return whether that changes it.

    They are what transformers reads: added_tokens_decoder, or else added_tokens.json, whose tokens are
    matched after normalization unless they are special; then the special tokens, of which those with a role
    are in the vocabulary. Raises InputError for a wrong entry, and for an id that is not the next one.
    """
    before = {token.content: repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    where = folder / SETTINGS
    more = [token for key in ADDITIONAL for token in _listed(settings.get(key), where)]
    roles = [settings.get(f"{role}_token") for role in (*ROLES, "bos", "eos")]
    roles = [token for token in roles if token is not None]
    special = {_name_of(token): token for token in sorted([*roles, *more], key=_has_flags)}
    stated = _stated_tokens(folder, settings, special)
    new = [stated[index] for index in sorted(stated)]
    known = {*before, *(token.content for token in new)}
    in_vocabulary = {
        _name_of(token) for token in roles if tokenizer.token_to_id(str(_name_of(token))) is not None
    }
    wanted = in_vocabulary.union(map(_name_of, more)) - known
    new += [_as_added(token, where, True) for name, token in special.items() if name in wanted]
    for is_special, group in groupby(new, key=lambda token: token.special):
        (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)(list(group))
    for index, token in stated.items():
        if tokenizer.token_to_id(token.content) != index:
            raise InputError(
                f"{folder}: the added token {shown(token.content)} has the id {index}, which is not the next "
                f"one; have transformers write {FAST_TOKENIZER} into it: its tokenizer.save_pretrained"
            )
    after = {token.content: repr(token) for token in tokenizer.get_added_tokens_decoder().values()}
    return after != before


def _stated_tokens(
    folder: Path, settings: Mapping[str, Any], special: Mapping[Optional[str], Any]
) -> Dict[int, AddedToken]:
    """Return the added tokens that stand there with ids; ``special``: those that have a role, by name."""
    is_in_settings = DECODER in settings
    where = folder / (SETTINGS if is_in_settings else ADDED_TOKENS)
    found = settings[DECODER] if is_in_settings else _read_beside(where)
    if not isinstance(found, dict):
        raise InputError(f"{where}: {DECODER} is {shown(found)}, not an object of tokens; {CURE}")
    stated: Dict[int, AddedToken] = {}
    for key, value in found.items():
        index: Any
        token: Any
        index, token = (key, value) if is_in_settings else (value, key)
        is_special = _has_flags(token) and token.get("special") is True if is_in_settings else key in special
        if isinstance(index, str) and index.isdecimal() and len(index) <= len(str(MAX_TOKENS)):
            index = int(index)
        if not is_whole_number(index, 0, MAX_TOKENS):
            raise InputError(f"{where}: {shown(index)} is no id of an added token; {CURE}")
        stated[index] = _as_added(token, where, is_special)
    return stated


def _has_flags(token: object) -> bool:
    return isinstance(token, dict)


def _as_added(token: Any, where: Path, is_special: bool) -> AddedToken:
    """Return a token as JSON has it, a text or an object; one that is not special is matched normalized."""
    flags, content = token if _has_flags(token) else {}, _name_of(token)
    found = {key: flags.get(key, False) for key in ("lstrip", "rstrip", "single_word")}
    found["normalized"] = flags.get("normalized", not is_special)
    if not content or not all(isinstance(flag, bool) for flag in found.values()):
        raise InputError(f"{where}: the added token {shown(token)} is no text and no object of one; {CURE}")
    return AddedToken(content, special=is_special, **found)


def _bert_normalizer(settings: Mapping[str, Any], where: str) -> normalizers.BertNormalizer:
    usual = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
    asked = {key: settings.get(key, value) for key, value in usual.items()}
    for key, value in asked.items():
        if not isinstance(value, bool) and not (value is None and key == "strip_accents"):
            raise InputError(f"{where}: {key} is {shown(value)}; write true or false")
    return normalizers.BertNormalizer(
        clean_text=True,
        lowercase=asked["do_lower_case"],
        strip_accents=asked["strip_accents"],
        handle_chinese_chars=asked["tokenize_chinese_chars"],
    )


def _bert_tokenizer(tokens: List[str], settings: Mapping[str, Any], path: Path) -> Tokenizer:
    """Return the tokenizer that transformers makes of a vocab.txt: [CLS] a [SEP] b [SEP]."""
    named = {role: _name_of(settings.get(f"{role}_token")) or f"[{role.upper()}]" for role in ROLES}
    vocab = {token: index for index, token in enumerate(tokens)}
    added = _stated_tokens(path.parent, settings, {})
    known = {*vocab, *(token.content for token in added.values())}
    missing = [token for role, token in named.items() if token not in (known if role in BESIDE else vocab)]
    if missing:
        raise InputError(f"{path}: no {' '.join(missing)} among its {len(tokens)} tokens; {CURE}")
    made = Tokenizer(WordCutter(vocab, unk_token=named["unk"], max_input_chars_per_word=MAX_WORD_LENGTH))
    made.normalizer = _bert_normalizer(settings, str(path.parent / SETTINGS))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    cls, sep = named["cls"], named["sep"]
    made.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocab[cls]), (sep, vocab[sep])],
    )
    made.decoder = decoders.WordPiece()
    of_roles = [settings.get(f"{role}_token") or named[role] for role in ROLES if named[role] in vocab]
    made.add_special_tokens([_as_added(token, path.parent / SETTINGS, True) for token in of_roles])
    return made


def _cuts_as_bert(state: Mapping[str, Any]) -> bool:
    model = state["model"]
    kinds = [(state.get(part) or {}).get("type") for part in ("pre_tokenizer", "normalizer")]
    rule = [model.get(key) for key in ("continuing_subword_prefix", "max_input_chars_per_word")]
    is_bert = kinds == ["BertPreTokenizer", "BertNormalizer"] and rule == [CONTINUATION, MAX_WORD_LENGTH]
    return is_bert and all(
        token["content"] in model["vocab"] and not (token["lstrip"] or token["rstrip"] or token["normalized"])
        for token in state["added_tokens"]
    )


@contextmanager
def _panics_named(where: str) -> Iterator[None]:
    """Raise InputError for a panic of the library, which is no Exception: nobody would handle it."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())[:200]
        fault = f"{where}: the library tokenizers fails on a text ({reason}); take another model"
        raise InputError(fault) from None


def _read_json(path: Path) -> Tokenizer:
    try:
        content = read_regular(path, MAX_BYTES)
        state = json.loads(content)
        state = state if isinstance(state, dict) else {}
        fault = fault_of_rules(state)
        if not fault:
            with _panics_named(str(path)):
                made = Tokenizer.from_buffer(content)
                fault = fault_of_speed(patterns_of(state), made.encode)
        if fault:
            raise InputError(f"{path}: it has {fault}; take another model")
        return made
    except (OSError, InputError):
        raise
    except Exception as error:  # the library raises a plain Exception
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: it cannot be read ({reason}); {CURE}") from None


def _read_sentence_pieces(path: Path) -> Tokenizer:
    """Return the tokenizer of XLM-RoBERTa for a Unigram model of sentencepiece.

    Its ids are those of sentencepiece plus one, behind <s>, <pad>, </s>, <unk>; <mask> is the last.
    """
    model = _sentence_pieces_message()()
    try:
        model.ParseFromString(read_regular(path, MAX_BYTES))
    except OSError:
        raise
    except Exception as error:  # of protobuf, which has its own
        raise InputError(f"{path}: no model of sentencepiece ({error}); {CURE}") from None
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    if model.trainer.model_type != UNIGRAM or len(pieces) <= 3:
        raise InputError(f"{path}: no Unigram model of sentencepiece; take a model that has {FAST_TOKENIZER}")
    fault = fault_of_charsmap(model.normalizer.precompiled_charsmap)
    if fault:
        raise InputError(f"{path}: it has {fault}; take another model")
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    made = Tokenizer(Unigram([*first, *pieces[3:], ("<mask>", 0.0)], unk_id=3))
    if model.normalizer.precompiled_charsmap:
        made.normalizer = normalizers.Precompiled(model.normalizer.precompiled_charsmap)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always")]
    )
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    made.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, _ in first])
    made.add_special_tokens([AddedToken("<mask>", special=True, normalized=False, lstrip=True)])
    return made


def _sentence_pieces_message():
    """Return the class of protobuf's messages that are a model of sentencepiece, as far as it is read here.

    The description in sentencepiece 0.2.3 wants protobuf 7, which not every library beside it takes.
    """
    import_optional("google.protobuf")
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="ernie_pair/sentence_pieces.proto", package="sentence_pieces")
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            field = described.field.add(name=name, number=number)
            many = name in MANY
            field.label = FieldDescriptorProto.LABEL_REPEATED if many else FieldDescriptorProto.LABEL_OPTIONAL
            if kind in MESSAGES:
                field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".sentence_pieces.{kind}"
            else:
                field.type = getattr(FieldDescriptorProto, f"TYPE_{kind}")
            if name in DEFAULTS:
                field.default_value = DEFAULTS[name]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("sentence_pieces.Model"))


def _parts_of(encoding: Encoding, texts: int) -> Tuple[List[int], ...]:
    """Return the special ids before, between and after the ``texts`` texts of an encoding."""
    parts: List[List[int]] = [[] for _ in range(texts + 1)]
    seen = 0
    for token_id, which in zip(encoding.ids, encoding.sequence_ids):
        if which is None:
            parts[seen].append(token_id)
        else:
            seen = which + 1
    return tuple(parts)


def _name_of(token: object) -> Optional[str]:
    """Return the text of a special token as tokenizer_config.json writes it: a text, or an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _whole(text: str) -> str:
    return _HALF_CHARACTERS.sub("\ufffd", text)
