"""Tokenizers that somebody made up: refused by name at once, or bounded; real ones are not."""

import base64
import json
import time

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from data_tools.text import folder_tokenizer
from data_tools.text.folder_tokenizer import open_folder_tokenizer
from data_tools.text.tokenizer_bounds import fault_of_pattern, fault_of_rules
from ernie_pair.core.errors import InputError

VOCAB = {
    token: place for place, token in enumerate(["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "a", "##a"])
}
PARTS = "pretokenizers"
# Those of GPT-2, of GPT-4, of its successor, of Qwen 2, of XLM-RoBERTa and of DeepSeek.
REAL_PATTERNS = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?+\p{L}+|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
    r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r" {2,}",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*",
]  # fmt: skip
BAD_PATTERNS = [
    "(a+)+$", "(a|a)*$", "(a|aa)+$", "(?:a*)*b", "((a+)b?)+", "(?=(a+)+$)a", "(?<x>a+)+b",
    "(?i:a+){2,}b", "([ab]+c?){9}",
    "a*a*a*a*b", "a?a?a?a?a?a?aaaaaa", r"(a)\1*b", r"(a)\k<1>", r"(?<x>a\g<x>?)", "(x{300}){300}",
    "x{100000}", "(?~ab)",
]  # fmt: skip


def made():
    found = Tokenizer(models.WordPiece(VOCAB, unk_token="[UNK]"))
    found.normalizer = normalizers.BertNormalizer()
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = [("[CLS]", 1), ("[SEP]", 2)]
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=specials
    )
    return found


def state_of(**parts):
    state = json.loads(made().to_str())
    for name, part in parts.items():
        state[name] = {**state[name], **part} if name == "model" else part
    return state


def write(folder, state):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(state), encoding="utf-8")
    return path


def rules(kind, *given, name="normalizers"):
    return {"type": "Sequence", name: [{"type": kind, **one} for one in given]}


def given(pattern, content, kind="String"):
    return {"pattern": {kind: pattern}, "content": content}


def replaced(text, content, times):
    return rules("Replace", *[given(text, content)] * times)


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def part(name, kind="SpecialToken", segment=0):
    return {kind: {"id": name, "type_id": segment}}


def charsmap(*texts):
    return base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"\0".join(texts)).decode()


HOSTILE = {
    "doubling": (state_of(normalizer=replaced("a", "aa", 34)), "rules that make up to 1.72e[+]10 characters"),
    "doubling by turns": (
        state_of(normalizer=rules("Replace", *[given(a, b * 2) for a, b in ["xy", "yx"] * 17])),
        "rules that make up to",
    ),
    "between all characters": (
        state_of(normalizer=rules("Replace", *[given("", "aa", "Regex")] * 20)),
        "rules that make up to",
    ),
    "a long text before": (
        state_of(normalizer={"type": "Prepend", "prepend": "a" * 99999}),
        "rules that make up to 1e[+]05",
    ),
    "a letter and its compatibility forms": (
        state_of(
            normalizer={
                "type": "Sequence",
                "normalizers": [{"type": "Replace", **given("\u0635", "\ufdfa")}, {"type": "NFKD"}] * 9,
            }
        ),
        "rules that make up to",
    ),
    "many rules": (state_of(pre_tokenizer=rules("Whitespace", *[{}] * 65, name=PARTS)), "67 rules, above"),
    "nested rules": (state_of(normalizer=rules("Sequence", *[replaced("a", "a", 40)] * 2)), "82 rules"),
    "an id of 3e8": (state_of(model={"vocab": {**VOCAB, "b": 300_000_000}}), "the id 300000000 among "),
    "an added id": (
        state_of(
            added_tokens=[
                {
                    **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
                    **{"id": 4_000_000, "content": "b", "special": True},
                }
            ]
        ),
        "the id 4000000 among ",
    ),
    "a long token": (state_of(model={"vocab": {**VOCAB, "b" * 5000: 7}}), "a token of 5000 characters"),
    "long words": (state_of(model={"max_input_chars_per_word": 1 << 30}), "words of 1073741824 characters"),
    "a pattern that backtracks": (
        state_of(pre_tokenizer=split("(a+)+$")),
        r'a pattern, "\(a\+\)\+\$", that repeats what',
    ),
    "a pattern of a replacement": (
        state_of(normalizer=rules("Replace", {"pattern": {"Regex": "(b|bb)+$"}, "content": ""})),
        "a pattern, ",
    ),
    "a slow pattern": (state_of(pre_tokenizer=split("[ab]*[ac]*[ad]*e")), "a pattern that takes long"),
    "a character that becomes a page": (
        state_of(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap(b"x" * 999)}),
        "becomes 999 bytes",
    ),
    "a table that is cut": (
        state_of(
            normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(b"\xff" * 9).decode()}
        ),
        "a damaged table",
    ),
    "many separators": (
        state_of(
            post_processor={
                "type": "TemplateProcessing",
                "single": [part("[CLS]"), part("A", "Sequence"), part("[SEP]")],
                "pair": [
                    *(part("[CLS]"), part("A", "Sequence"), *[part("[SEP]")] * 3000),
                    *(part("B", "Sequence", 1), part("[SEP]")),
                ],
                "special_tokens": {
                    one: {"id": one, "ids": [VOCAB[one]], "tokens": [one]} for one in ("[CLS]", "[SEP]")
                },
            }
        ),
        "it puts other special tokens around texts",
    ),
    "no JSON": ("[" * 5000, "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_refused_by_name_at_once(tmp_path, name):
    state, reason = HOSTILE[name]
    path = write(tmp_path, state)
    began = time.process_time()
    with pytest.raises(InputError, match=reason) as refused:
        open_folder_tokenizer(path, "bert")
    assert time.process_time() - began < 5
    message = refused.value.message
    assert message.startswith(str(path)) and "\n" not in message and len(message) < 500 + len(str(path))


def test_a_panic_of_the_library_is_an_error_of_the_folder(tmp_path, monkeypatch):
    """Should a pattern pass that backtracks: on a text that nobody tried."""
    for name in ("fault_of_rules", "fault_of_speed"):
        monkeypatch.setattr(folder_tokenizer, name, lambda *given: "")
    opened = open_folder_tokenizer(write(tmp_path, state_of(pre_tokenizer=split("(b+)+$"))), "bert")
    for each in (opened.encode, opened.tokenize):
        with pytest.raises(InputError, match="tokenizers fails on a text .*retry-limit-in-match"):
            each("b" * 40 + "!")
    assert opened.encode("a") == [VOCAB["a"]]


@pytest.mark.parametrize("pattern", REAL_PATTERNS)
def test_patterns_of_real_tokenizers_are_taken(tmp_path, pattern):
    Regex(pattern)
    assert fault_of_pattern(pattern) == ""
    opened = open_folder_tokenizer(write(tmp_path, state_of(pre_tokenizer=split(pattern))), "bert")
    assert opened.encode("aa") == [VOCAB["a"], VOCAB["##a"]]


@pytest.mark.parametrize("pattern", BAD_PATTERNS)
def test_patterns_without_a_bound_are_refused(pattern):
    assert fault_of_pattern(pattern).startswith("a pattern, ")


def test_rules_of_real_tokenizers_are_taken():
    """Those of ALBERT, of many ligatures, and of word pieces."""
    ligatures = [
        {"pattern": {"String": chr(point)}, "content": "...(x)"} for point in range(0x2460, 0x2460 + 40)
    ]
    quotes = [{"pattern": {"String": one}, "content": '"'} for one in ("``", "''")]
    parts = [*rules("Replace", *quotes, *ligatures)["normalizers"], {"type": "NFKD"}, {"type": "Lowercase"}]
    assert fault_of_rules(state_of(normalizer={"type": "Sequence", "normalizers": parts})) == ""
    assert fault_of_rules(json.loads(made().to_str())) == ""
