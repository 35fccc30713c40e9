"""What the labels of a file mean: the classes of a model and their names, or the scores that it gives.

    --label_map 0=different,1=same      the classes are called so; files may hold 0 and 1, or the names
    --label_map contradiction,neutral,entailment                     the same for 0, 1 and 2
    --label_map 0=no,0=unsure,1=yes     two names for one class; the first is its own

config.json keeps them as id2label (the names) and label2id (all spellings). A model for regression has one
output there, as transformers writes it, and the range of its labels:

    {"num_labels": 1, "problem_type": "regression", "label_range": [0.0, 5.0]}
    {"num_labels": 1, "problem_type": "regression", "pair_target": "ranking"}      that ranks, labels 0 to 3
    {..., "label_range": [0, 1], "score_activation": "sigmoid"}      a published reranker, as of CrossEncoder
"""

import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from data_tools.text.characters import compatible
from ernie_pair.core.errors import InputError
from ernie_pair.core.files.json_file import reads_as_number

CLASSIFICATION, REGRESSION, RANKING = "classification", "regression", "ranking"
# What makes the score of the one output of a published reranker; a model that is trained here has none.
ACTIVATION, SIGMOID, IDENTITY = "score_activation", "sigmoid", "identity"
TARGETS = (CLASSIFICATION, REGRESSION, RANKING)  # what a model is for
BEST_GRADE = 3  # of a candidate, as judges of search engines grade; 0 is not relevant
RANGE, PROBLEM, TARGET = "label_range", "problem_type", "pair_target"
EXAMPLE = "0=different,1=same"
UNLABELLED = -1  # stands for the class of a row without label, where labels are optional
SCORE = "score"  # what the output of a model without classes is called
MAX_WORDS = 20  # of classes that are taken from a file
MAX_WORD_LENGTH = 40  # characters of a word that may be meant as the name of a class
RARE = 0.01  # of the rows: a label of fewer, beside two others, is none of the classes
# What a word says, for no (0) and for yes (1): of answers, to a question that they do not tell; of relations,
# what two texts are to one another. A negation needs no entry.
_ANSWERS, _RELATIONS = (
    {word: sense for sense, words in enumerate(kinds) for word in words.split()}
    for kinds in (
        (
            "否 不是 非 no n false f 错误 错 假 负 反 负例 负样本 negative neg wrong",
            "是 yes y true t 正确 对 真 正 正例 正样本 positive pos right correct",
        ),
        (
            "不同 异 无关 矛盾 冲突 差异 有差异 区别 有区别 different diff differ differs distinct unique "
            "uniq irrelevant contradiction",
            "相同 同 一样 相似 相近 相等 匹配 命中 同义 一致 等价 重复 相关 有关 蕴含 蕴涵 same identical "
            "similar equal match matched duplicate dup relevant related entailment equivalent paraphrase",
        ),
    )
)
_BETWEEN = frozenset(("neutral", "中立", "中性"))  # the third class of entailment
_NEGATIONS = ("不", "非", "未", "无", "没", "没有", "not", "un", "mis", "dis", "no", "non", "in")
_QUOTES = ('""', "''", "“”", "‘’", "「」", "＂＂", "＇＇", "``")
_INTEGER = re.compile(r"-?[0-9]{1,9}(\.0+)?")
_WHOLE = re.compile(r"([0-9]{1,9})\.0+")  # as pandas writes a column of whole numbers that has a gap


@dataclass(frozen=True)
class Labels:
    """The labels of a model: classes and their names, or scores.

    ``names[c]`` is what class c is called; ``classes`` holds every spelling that a file may use. Where they
    ``are_optional`` a row without label has the class UNLABELLED. ``target``: what the model is for, one of
    TARGETS. ``label_range``: the lowest and the highest label of a regression, where they are known.
    ``activation``: SIGMOID or IDENTITY of a published reranker, see ACTIVATION; else ''.
    """

    names: Tuple[str, ...]
    classes: Dict[str, int]
    are_optional: bool = False
    target: str = CLASSIFICATION
    label_range: Optional[Tuple[float, float]] = None
    activation: str = ""

    @property
    def has_classes(self) -> bool:
        """Return whether the model chooses among classes; otherwise it gives one score."""
        return self.target == CLASSIFICATION

    @classmethod
    def numbered(cls, count: int) -> "Labels":
        """Return ``count`` classes that are called by their numbers."""
        return cls.named({str(number): number for number in range(count)})

    @classmethod
    def named(cls, spellings: Dict[str, int]) -> "Labels":
        """Return the classes of {spelling: class}; the first spelling of a class is its name.

        The numbers of the classes count too, unless a spelling is a number itself.
        """
        names: Dict[int, str] = {}
        for spelling, number in spellings.items():
            names.setdefault(number, spelling)
        classes = dict(spellings)
        if not any(map(_is_number, spellings)):
            classes.update((str(number), number) for number in names)
        return cls(tuple(names[number] for number in sorted(names)), classes)

    @classmethod
    def scores(cls, limits: Optional[Tuple[float, float]] = None, activation: str = "") -> "Labels":
        """Return the labels of a model for regression: numbers within ``limits``, where they are known."""
        return cls((SCORE,), {}, target=REGRESSION, label_range=limits, activation=activation)

    @classmethod
    def of_candidates(cls) -> "Labels":
        """Return the labels of a model that ranks candidates: 0 of an irrelevant one, up to BEST_GRADE."""
        return cls((SCORE,), {str(grade): grade for grade in range(BEST_GRADE + 1)}, target=RANKING)

    @cached_property
    def _plain_classes(self) -> Dict[str, int]:
        """Return {plain spelling: class} of the spellings whose plain form says one class."""
        found: Dict[str, set] = {}
        for spelling, number in self.classes.items():
            found.setdefault(plain_label(spelling), set()).add(number)
        return {plain: numbers.pop() for plain, numbers in found.items() if len(numbers) == 1}

    def class_of(self, label: object) -> Optional[int]:
        """Return the class that a text or a number names, None for none. 1.0 is read as 1.

        Case, width, quotes and spaces around do not matter, unless two classes differ by them.
        """
        text = bare_label(label)
        if text in self.classes:
            return self.classes[text]
        text = plain_label(text)
        whole = _WHOLE.fullmatch(text)
        return self._plain_classes.get(whole[1] if whole else text)

    def value_of(self, label: object) -> Union[int, float, None]:
        """Return what is learned from a label, a text or a number: a class, or a score within the limits.

        None where it is no class, or no number, not finite or out of range.
        """
        if self.target != REGRESSION:
            return self.class_of(label)
        if isinstance(label, bool) or not isinstance(label, (str, Real)):
            return None
        label = bare_label(label) if isinstance(label, str) else label
        if isinstance(label, str) and ("_" in label or not label.isascii()):  # which Python reads as digits
            return None
        try:
            value = float(label)
        except (ValueError, OverflowError):
            return None
        low, high = self.label_range or (-math.inf, math.inf)
        return value if math.isfinite(value) and low <= value <= high else None

    @property
    def read_as(self) -> List[Any]:
        """Return what determines how labels are read, as JSON can hold it."""
        if self.has_classes:
            return sorted(self.classes.items())
        return [self.target, self.label_range] if self.target == REGRESSION else [self.target, BEST_GRADE]

    def to_config(self) -> Dict[str, Any]:
        """Return the keys of a config.json that keep these labels."""
        if self.has_classes:
            names = {str(number): name for number, name in enumerate(self.names)}
            return {"num_labels": len(names), "id2label": names, "label2id": self.classes}
        more = {
            TARGET: RANKING if self.target == RANKING else "",
            RANGE: list(self.label_range or ()),
            ACTIVATION: self.activation,
        }
        return {"num_labels": 1, PROBLEM: REGRESSION, **{key: more[key] for key in more if more[key]}}

    @property
    def allowed(self) -> str:
        """Return all spellings, or which numbers are allowed, for an error message."""
        if self.target != REGRESSION:
            return ", ".join(self.classes)
        limits = self.label_range
        return "a number" if limits is None else "a number from {:g} to {:g}".format(*limits)


def check_has_classes(labels: Labels, where: str, what: str) -> None:
    """Raise InputError for a model without classes, ``where``, that ``what`` has no use of."""
    if not labels.has_classes:
        raise InputError(
            f"{where} is a model for {labels.target}, and {what} takes those with classes; name one of them"
        )


def parse_label_range(text: str) -> Optional[Tuple[float, float]]:
    """Return the lowest and the highest label of --label_range, None if it is empty. Raises InputError."""
    if not text:
        return None
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"--label_range {text} is not a lowest and a highest label; write 0,5, for example")
    return low, high


def parse_label_map(text: str) -> Labels:
    """Return the labels that --label_map names. Raises InputError naming the part that is wrong."""
    return Labels.named(_spellings_of(text))


def spelled_too(labels: Labels, label_map: str) -> Labels:
    """Return the classes ``labels`` of a model, with the spellings of ``label_map``. Raises InputError."""
    spellings = _spellings_of(label_map) if label_map else {}
    if spellings and max(spellings.values()) >= len(labels.names):
        raise InputError(
            f"--label_map {label_map} names class {max(spellings.values())}, and the model has "
            f"{len(labels.names)}, numbered from 0: {', '.join(labels.names)}; name no others"
        )
    return replace(labels, classes={**labels.classes, **spellings})


def _spellings_of(text: str) -> Dict[str, int]:
    """Return {spelling: class} of --label_map. Raises InputError naming the part that is wrong."""
    parts = [part.strip() for part in text.split(",")]
    numbered = [part.partition("=") if "=" in part else ("", "", part) for part in parts]
    if len({equals for _, equals, _ in numbered}) != 1:
        raise _bad_map(text, "some of its parts have a class and some have none")
    spellings: Dict[str, int] = {}
    for position, (number, equals, name) in enumerate(numbered):
        number, name = number.strip() if equals else str(position), name.strip()
        if not _is_number(number):
            raise _bad_map(text, f"{number!r} is not a class number")
        if not name or name in spellings:
            fault = f"the name {name!r} is given twice" if name else f"class {number} has no name"
            raise _bad_map(text, fault)
        spellings[name] = int(number)
    numbers = sorted(set(spellings.values()))
    if len(numbers) < 2:
        raise _bad_map(text, "a classifier needs 2 classes or more")
    if numbers != list(range(len(numbers))):
        raise _bad_map(text, f"its classes are {', '.join(map(str, numbers))}, not 0 and up without a gap")
    return spellings


def build_label_map(counts: Mapping[str, int], most_classes: int = MAX_WORDS) -> str:
    """Return the --label_map of the words that a file has as labels, {word: rows}.

    '' where they are numbers or more than ``most_classes``, or do not tell which of them is the match.
    """
    words, _ = frequent_words(counts)
    classes = [] if any(map(is_number, words)) else order_classes(words)
    return "" if len(classes) > max(2, most_classes) else _written(classes)


def frequent_words(counts: Mapping[str, int]) -> Tuple[List[str], List[str]]:
    """Return a spelling of each class among the labels of a file, {label: rows}, and the RARE labels.

    Both are in the order of the file, never in that of their characters.
    """
    rows: Dict[str, int] = {}
    for word, count in counts.items():
        rows[plain_label(word)] = rows.get(plain_label(word), 0) + count
    kept = sorted(rows, key=lambda plain: -rows[plain])[:2]
    kept += [plain for plain in rows if rows[plain] >= RARE * sum(rows.values())]
    spellings = {plain_label(word): word for word in reversed(list(counts))}
    frequent = [spellings[plain] for plain in rows if plain in kept]
    return frequent, [word for word in counts if plain_label(word) not in kept]


def is_number(word: str) -> bool:
    """Return whether a label is a number; NaN, as an empty cell is written, is none."""
    return reads_as_number(word) and math.isfinite(float(word))


def are_class_names(counts: Mapping[str, int]) -> bool:
    """Return whether the labels of a file, {label: rows}, may be classes: a few short words, often used."""
    words, _ = frequent_words(counts)
    if any(is_number(word) and not _INTEGER.fullmatch(plain_label(word)) for word in words):
        return False
    is_short = all(word and len(word) <= MAX_WORD_LENGTH and not set(word) & set("=,") for word in words)
    return is_short and 2 <= len(words) <= MAX_WORDS and 2 * len(words) <= sum(counts.values())


def label_maps(counts: Mapping[str, int], most_classes: int, match: int = 1) -> Dict[str, str]:
    """Return {words that are the match: the --label_map of it} of labels that tell no class by themselves.

    The likeliest comes first. A word for yes is in the match, one for no is not, where others can be. Of more
    than two labels, where more classes are allowed, there is one map, '', of all of them in an order.
    ``match``: the class of the match.
    """
    words, _ = frequent_words(counts)
    senses = {word: {"0": 0, "1": 1}.get(word, find_sense(word)) for word in words}
    no, yes, unknown = ([word for word in words if senses[word] == sense] for sense in (0, 1, None))
    if len(words) > 2 and most_classes > 2:
        known = order_classes(no + yes) or [[word] for word in no + yes]
        return {"": _written([*known, *([word] for word in unknown)])}
    if all(map(is_number, words)):  # 1 may be the match beside 0, and be none beside 2
        choices = [[word] for word in yes + unknown + (no if len(words) == 2 else [])]
    elif yes:
        choices = [yes, *(yes + [word] for word in unknown)]
        choices += [[word for word in yes if word == one or is_answer(word)] for one in yes if not unknown]
    else:
        choices = [[word] for word in unknown or no]
    maps = {}
    for chosen in choices:
        others = [word for word in words if word not in chosen]
        if others:
            maps[" and ".join(chosen)] = _written([others, chosen] if match == 1 else [chosen, others])
    return maps


def _written(classes: List[List[str]]) -> str:
    """Return the --label_map of the spellings of classes 0, 1, ..."""
    return ",".join(f"{number}={word}" for number, words in enumerate(classes) for word in words)


def words_as_classes(counts: Mapping[str, int], labels: Labels) -> Dict[str, int]:
    """Return {plain word: class} of the words for the two classes of ``labels`` that a file has.

    ``counts``: {label: rows} of the whole file. Yes and no are known beside other labels; what two texts
    are to one another only beside no other relation, so that 相关 is no match beside 同义.
    """
    match = match_class(labels)
    if match is None:
        return {}
    words, _ = frequent_words(counts)
    senses = {word: find_sense(word) for word in words if is_answer(word) or len(words) == 1}
    classes = order_classes([word for word in words if not is_number(word)])
    if len(classes) == 2:
        senses.update({word: sense for sense in (0, 1) for word in classes[sense]})
    return {
        plain_label(word): match if sense else 1 - match
        for word, sense in senses.items()
        if sense is not None and labels.class_of(word) is None
    }


def match_class(labels: Labels) -> Optional[int]:
    """Return the class of pairs that match: by its name, else 1; None unless there are two classes.

    A name tells where it says what two texts are to one another, as in {0: duplicate, 1: not_duplicate};
    yes and no answer a question that is not known here.
    """
    if not labels.has_classes or len(labels.names) != 2:
        return None
    found = find_match(labels.names) if are_relations(labels.names) else None
    return 1 if found is None else found


def labels_in(config: Mapping[str, Any]) -> Labels:
    """Return the labels of a config.json: scores of a model for regression or ranking, else classes.

    Those are called by their numbers where it has no names. Raises InputError if these are not as many.
    """
    target = target_in(config)
    if target == RANKING:
        return Labels.of_candidates()
    if target == REGRESSION:
        limits = config.get(RANGE)
        limits = None if limits is None else (float(limits[0]), float(limits[1]))
        return Labels.scores(limits, config.get(ACTIVATION, ""))
    count, names = num_labels_in(config), config.get("id2label")
    if names is None:
        return Labels.numbered(count)
    spellings = {str(name): int(key) for key, name in names.items() if _is_number(str(key))}
    more = config.get("label2id") or {}
    spellings.update((name, number) for name, number in more.items() if number in range(count))
    if set(spellings.values()) != set(range(count)):
        raise InputError(f"config.json: id2label does not name the {count} classes; fix it, or remove it")
    return Labels.named(spellings)


def num_labels_in(config: Mapping[str, Any]) -> int:
    """Return the classes of a classifier, 2 by default; 1 if it gives scores. Raises InputError below 2."""
    if target_in(config) != CLASSIFICATION:
        return 1
    value = config.get("num_labels", config.get("num_classes", 2))
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        raise InputError(f"config.json: num_labels is {value!r}; a classifier needs 2 classes or more")
    return value


def target_in(config: Mapping[str, Any]) -> str:
    """Return what the model of a config.json is for, one of TARGETS; regression as transformers tells it."""
    if config.get("num_labels") != 1 or config.get(PROBLEM) != REGRESSION:
        return CLASSIFICATION
    return RANKING if config.get(TARGET) == RANKING else REGRESSION


def without_labels(config: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a config.json without what tells of its labels, for others to be written there."""
    gone = {"id2label", "label2id", "num_labels", "num_classes", RANGE, TARGET, ACTIVATION}
    gone |= {PROBLEM} if config.get(PROBLEM) == REGRESSION else set()
    return {key: value for key, value in config.items() if key not in gone}


def _bad_map(text: str, reason: str) -> InputError:
    return InputError(f"--label_map {text!r}: {reason}; write {EXAMPLE}, for example")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


# --- the words that files and models have for two classes: which of them says that two texts match


def bare_label(label: object) -> str:
    """Return the text of a label without spaces and quotes around it."""
    try:
        text = str(label).strip()
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
    while len(text) > 1 and text[0] + text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return text


def plain_label(label: object) -> str:
    """Return the text that labels of one class share, whatever their case, width and quotes."""
    return bare_label(compatible(bare_label(label))).casefold()


def find_sense(word: str) -> Optional[int]:
    """Return 0 for a word for no, 1 for one for yes, in any spelling; None for others.

    What a word that is not known means is not known of its negation either.
    """
    base, is_negated = _base_of(word)
    sense = _ANSWERS.get(base, _RELATIONS.get(base))
    return sense if sense is None or not is_negated else 1 - sense


def is_answer(word: str) -> bool:
    """Return whether ``word`` answers yes or no, whatever the question is."""
    return _base_of(word)[0] in _ANSWERS


def are_relations(words: Sequence[str]) -> bool:
    """Return whether one of ``words`` says what two texts are to one another: same, different, ..."""
    return any(_base_of(word)[0] in _RELATIONS for word in words)


def _base_of(word: str) -> Tuple[str, bool]:
    """Return the known word that ``word`` is, and whether it is its negation; '' where none is known."""
    joined = re.sub(r"[\s_-]+", "", plain_label(word))
    if joined in _ANSWERS or joined in _RELATIONS:
        return joined, False
    bases = [joined[len(negation) :] for negation in _NEGATIONS if joined.startswith(negation)]
    known = [base for base in bases if base in _RELATIONS or base in _ANSWERS and len(base.encode()) > 1]
    return (known[0], True) if known else ("", False)


def find_match(words: Sequence[str]) -> Optional[int]:
    """Return the place, 0 or 1, of the one of two ``words`` that says that texts match, None if not known."""
    senses = [find_sense(word) for word in words]
    return senses.index(1) if set(senses) == {0, 1} else None


def order_classes(words: Sequence[str]) -> List[List[str]]:
    """Return the spellings of classes 0, 1, ... among ``words``; [] where the words do not tell.

    Class 1 is the match; a third class is what lies between. Answers, 是, and one relation, 匹配, may both
    stand for a class, two relations may not: what is 相关 need not be 同义.
    """
    between = [word for word in words if plain_label(word) in _BETWEEN]
    senses = {word: find_sense(word) for word in words if word not in between}
    classes = [[word for word, sense in senses.items() if sense == number] for number in (0, 1)]
    is_clear = all(classes) and None not in senses.values() and len(between) < 2
    is_clear = is_clear and all(sum(not is_answer(word) for word in each) < 2 for each in classes)
    return [*classes, *([between] if between else [])] if is_clear else []
