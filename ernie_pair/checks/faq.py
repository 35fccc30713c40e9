"""The questions and answers of a pipeline, read as people have them, and made a search that is measured.

question, answer                    a row each; questions of one answer are variants of each other
variant, standard question          with or without an answer: the variants of one question belong together
several in one cell, a line each    each is a question of its own

Of each question that has variants one is held out: half of these choose how the service searches, the others
measure it. The index that is served has all of them.
"""

import json
import random
import re
import shlex
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from data_tools.text.columns import LOOKED_AT, holds_texts, is_header, plain_name, split_columns, text_of
from data_tools.text.tables import JSON_FORMS, PARTLY, SURE, Form, Record, choose_table, detect_form, records
from data_tools.text.text_files import LineRules, Place, say_once
from data_tools.text.texts import LeftOut, NamedText, TextColumns, has_ids, read_texts
from ernie_pair.checks.recipe import RecipeCommands, Step, choose_epochs
from ernie_pair.core.errors import InputError, again_with, counted
from ernie_pair.core.files.atomic_files import published
from ernie_pair.core.files.json_file import read_json_object, shown
from ernie_pair.models.model_folder import kind_of_folder
from ernie_pair.pairs.audit.new_pairs import documents
from ernie_pair.pairs.data.label_checks import overlap
from ernie_pair.retrieval.build_index import DECLARED
from ernie_pair.retrieval.evaluate_search import RERANKED
from ernie_pair.retrieval.index_folder import BM25, BOTH, keep_measured
from ernie_pair.runtime.processes.child_command import words_of

QUESTION, ANSWER, STANDARD = ROLES = ("question", "answer", "standard")
NAMES = {  # as `plain_name` gives them
    STANDARD: ("标准问", "标准问题", "标准问句", "standard", "standardquestion", "canonical", "主问题"),
    ANSWER: (
        "answer", "答案", "回答", "回复", "答", "a", "reply", "response", "答复", "标准答案", "参考答案",
    ),
    QUESTION: (
        "相似问", "相似问题", "扩展问", "用户问", "用户问题", "用户问句", "问法", "variant", "variants",
        "question", "问题", "问句", "问", "q", "query", "faq",
    ),
}  # fmt: skip
KNOWN = {name for each in NAMES.values() for name in each}
COLUMNS_HELP = "columns of --faq_file, such as answer=说明,standard=标准问,question=ask; empty: by names"
MIN_ENTRIES = 20
MOST_HELD_OUT = 2000
MIN_TO_CHOOSE = 20  # held-out questions, without which none chooses
MOST_SHARING = 10  # questions of one answer, above which they must look alike to be variants
MIN_OVERLAP = 0.2  # of their words, a question and the next; of LCQMC and AFQMC: variants 0.34, others 0.18
BATCH, STEPS = 64, 300  # of the encoder's training, the fewest steps; of fewer pairs than a batch none learns
FOLDER, INDEX = "faq", "faq.index"
Roles = Dict[str, str]  # {role: its column}


class Entry(NamedTuple):
    """A question, the number of the answer that it has, and the row that it stands in."""

    id: str  # of the table, if it names its rows
    question: str
    group: int  # below 0: alone with an answer of many
    answer: str
    row: int


@dataclass(frozen=True)
class Faq:
    """The entries of a file; ``said``: what was found odd; ``columns``: {role: its column}."""

    entries: List[Entry]
    said: List[str]
    columns: Dict[str, str]

    @property
    def role(self) -> str:
        """Return what stands beside the questions: their answers, or the standard questions alone."""
        return ANSWER if any(entry.answer for entry in self.entries) else STANDARD

    @property
    def payload(self) -> str:
        """Return what an index calls the answers: as their column, so that a table like it can be added."""
        name = self.columns.get(self.role, "")
        return name if re.fullmatch(r"[^\W\d]\w*", name) and name not in ("id", "text") else self.role

    @cached_property
    def groups(self) -> Dict[int, List[Entry]]:
        """Return the entries of each group, the standard question first."""
        found: Dict[int, List[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.group, []).append(entry)
        return found

    def hold_out(self, seed: int) -> Tuple[List[Entry], List[Entry]]:
        """Return the questions that choose the search and those that measure it, none the first of its group.

        They are one of each second group that has variants, so that the encoder learns from the others.
        """
        rng = random.Random(seed)
        chosen = [rng.choice(each[1:]) for each in self.groups.values() if len(each) > 1]
        rng.shuffle(chosen)
        most = min(max(len(chosen) // 2, 4 * MIN_TO_CHOOSE), MOST_HELD_OUT)
        chosen = chosen[:most] if len(chosen) > 1 else []  # one tells nothing
        half = len(chosen) // 2 if len(chosen) >= 2 * MIN_TO_CHOOSE else 0
        return chosen[:half], chosen[half:]


def read_faq(path: Path, named: str = "", skips: bool = False, place: Place = Place()) -> Faq:  # noqa: B008
    """Return the questions and answers of a table or of JSON.

    ``named``: its columns, as --faq_columns names them; ``place``: of the table; ``skips``: rows without a
    question or an answer are left out. Raises InputError with all that is wrong with the rows, or for columns
    that are not found.
    """
    if not path.is_file():
        raise InputError(f"--faq_file {path} is not a file; give one table of questions and answers")
    columns = _find_roles(path, _given_roles(named), place)
    payload = tuple(column for role, column in columns.items() if role != QUESTION)
    named_columns = TextColumns(columns[QUESTION], payload=payload, may_lack_ids=True)
    rules = LineRules(place=place)
    bad = _BadRows()
    rows = list(read_texts(path, bad, rules=rules, columns=named_columns))
    if STANDARD in columns:  # which may stand in a row without a variant, and is a question itself
        alone = read_texts(
            path, LeftOut(), rules=rules, columns=named_columns._replace(text=columns[STANDARD])
        )
        rows = sorted([*rows, *(row for row in alone if row.line in bad.rows)], key=lambda row: row.line)
        read = {row.line for row in rows}
        bad.rows = {line: reason for line, reason in bad.rows.items() if line not in read}
    is_named = has_ids(path, rules, named_columns) and len({row.id for row in rows}) == len(rows)
    faq, faults = _grouped(path, rows, columns, is_named)
    if bad.rows:
        first = next(iter(bad.rows.values()))
        faults.insert(0, f"{counted(len(bad.rows), 'row')} without a question, the first: {first}")
    if faults and not skips:
        cure = f"fill them in, or leave these rows out: {again_with({}, on_bad_row='skip')}"
        raise InputError(f"{'; '.join(faults)}; {cure}")
    if len(faq.entries) < MIN_ENTRIES:
        count = counted(len(faq.entries), "question")
        raise InputError(f"{path}: {count} are too few for a search; give at least {MIN_ENTRIES}")
    for line in (*faq.said, *(f"left out: {fault}" for fault in faults)):
        say_once(f"{path}: {line}" if not line.startswith(str(path)) else line)
    return faq


class _BadRows(LeftOut):
    """Rows that are no question, {number: what is wrong}."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Dict[int, str] = {}

    def add(self, reason: str, line: int) -> None:
        """Keep what is wrong with a row."""
        self.rows[line] = reason


def _given_roles(named: str) -> Roles:
    """Return {role: column} of --faq_columns. Raises InputError for another role."""
    given = {}
    for part in filter(None, named.split(",")):
        role, _, column = (word.strip() for word in part.partition("="))
        if role not in ROLES or not column:
            raise InputError(
                f"--faq_columns {named}: {shown(part)} is none of {', '.join(ROLES)}; write, for example, "
                "question=问题,answer=答案"
            )
        given[role] = column
    return given


def _find_roles(path: Path, given: Roles, place: Place) -> Roles:
    """Return {role: its column}, those ``given`` or found by their names. Raises InputError if unclear."""

    def judge(rows: Sequence[Record], form: Form) -> int:
        roles = _roles_in(path, given, rows, form)
        return SURE if given or KNOWN & set(map(plain_name, roles.values())) else PARTLY

    form = choose_table(path, detect_form(path), place, judge)
    return _roles_in(path, given, list(islice(records(path, form), LOOKED_AT)), form, say_once)


def _roles_in(path: Path, given: Roles, rows: Sequence[Record], form: Form, tell: Callable = str) -> Roles:
    first = [row for _, row in rows if not isinstance(row, InputError)]
    if form.kind in JSON_FORMS:
        names = list(dict.fromkeys(name for row in first if isinstance(row, dict) for name in row))
        table = [[row.get(name) for name in names] for row in first if isinstance(row, dict)]
    else:
        table = [row for row in first if isinstance(row, list)]
        cells = list(map(text_of, table[0])) if table else []
        is_sure = bool({*given.values()} & {*cells}) or bool(KNOWN & set(map(plain_name, cells)))
        has_header = (
            form.has_header if form.has_header is not None else is_sure or is_header(cells, table[1:])
        )
        names = cells if has_header else [str(place + 1) for place in range(len(cells))]
        if has_header is None and not given and len(cells) > 1:
            with_names = again_with({}, faq_columns=f"question={cells[0]},answer={cells[1]}")
            tell(f"{path}: read without a header; if its first row is one: {with_names}")
        table = table[has_header is not False :]
    plain = list(map(plain_name, names))
    for role, name in given.items():
        if name not in names:
            raise InputError(f"{path}: no column {name!r} in {', '.join(names)}; fix {role} of --faq_columns")
    if len({*given.values()}) < len(given):
        raise InputError("--faq_columns names a column twice; give each role a column of its own")
    roles = dict(given)
    for role in (STANDARD, ANSWER, QUESTION):
        fitting = (names[plain.index(name)] for name in NAMES[role] if name in plain)
        found = next((name for name in fitting if name not in roles.values()), "")
        if found and role not in roles:
            roles[role] = found
    ends = {name for name, one in zip(names, plain) if one.rstrip("0123456789") in {*NAMES[QUESTION]} - {one}}
    more = [name for name in names if name in ends and name not in roles.values()]
    if QUESTION not in roles and more:
        roles[QUESTION] = more.pop(0)
    columns = split_columns([row for row in table if len(row) == len(names)], len(names))
    texts = [name for name, column in zip(names, columns) if column and holds_texts(column)]
    if not roles and len(texts) == 2:
        roles = dict(zip((QUESTION, ANSWER), texts))
    if QUESTION not in roles and STANDARD in roles:
        roles[QUESTION] = roles.pop(STANDARD)
    numbers = [name for name, column in zip(names, columns) if column and not holds_texts([*{*column}])]
    is_open, num_others = QUESTION not in roles or len(roles) < 2, len(names) - len(numbers)
    if {roles.get(QUESTION), roles.get(ANSWER)} & {*numbers} or is_open and num_others < 2 <= len(names):
        raise InputError(f"{path}: numbers alone in {', '.join(numbers)}; give questions and answers")
    if is_open:
        _refuse_columns(path, [name for name in names if name not in numbers], texts, roles)
    return {**roles, **{f"{QUESTION}{number}": name for number, name in enumerate(more)}}


def _refuse_columns(path: Path, names: List[str], texts: List[str], roles: Roles) -> None:
    listed = ", ".join(names)
    if len(names) < 2:
        raise InputError(
            f"{path} has one column ({listed}); a search by questions needs their answers beside them, or "
            "the standard question of each; texts alone are found with: ernie-pair index --retrieval bm25 "
            f"--input_file {path} --output_dir texts.index"
        )
    free = iter([name for name in dict.fromkeys(texts + names) if name not in roles.values()])
    example = ",".join(f"{role}={roles.get(role) or next(free)}" for role in (QUESTION, ANSWER))
    raise InputError(
        f"{path}: which of the columns {listed} are the questions and their answers, or standard questions, "
        f"is unclear; name them, for example: {again_with({}, faq_columns=example)}"
    )


def _grouped(path: Path, rows: Sequence[NamedText], columns: Roles, is_named: bool) -> Tuple[Faq, List[str]]:
    """Return the entries of ``rows``, whose ids are theirs if ``is_named``, and what is wrong with some."""
    standard, answer = columns.get(STANDARD, ""), columns.get(ANSWER, "")
    others = [column for role, column in columns.items() if role not in ROLES]
    groups: Dict[str, int] = {}
    entries: Dict[Tuple[str, int], Entry] = {}
    faults: List[str] = []
    said: List[str] = []
    before = ""
    without, of_above, lines, twice = [], 0, 0, 0
    answers: Dict[int, str] = {}
    for row in rows:
        key, own = row.payload.get(standard or answer, ""), row.payload.get(answer, "")
        if standard and not key and before:
            key, of_above = before, of_above + 1
        if not key:
            without.append(row.line)
            continue
        group, before = groups.setdefault(key, len(groups)), key
        texts = "\n".join([row.text, *(row.payload.get(name, "") for name in others)])
        questions = [*([key] if standard and group not in answers else []), *texts.splitlines()]
        answers[group] = answers.get(group) or own
        lines += len(row.text.splitlines()) > 1
        for number, question in enumerate(filter(None, map(str.strip, questions))):
            twice += (question, group) in entries and question != key
            name = f"{row.id if is_named else row.line}{f'.{number}' if number else ''}"
            entries.setdefault((question, group), Entry(name, question, group, own, row.line))
    if without:
        what = f"no {standard or answer}"
        faults.append(f"{path}: {what} in {counted(len(without), 'row')}: {_places(without)}")
    found = [entry._replace(answer=entry.answer or answers[entry.group]) for entry in entries.values()]
    if standard and answer:
        empty = [entry for entry in found if not entry.answer]
        if empty:
            where = _places([entry.row for entry in empty])
            faults.append(f"{path}: no {answer} of {counted(len(empty), 'question')}: {where}")
            found = [entry for entry in found if entry.answer]
    found = found if standard else _part_unlike(found, said)
    by_question: Dict[str, List[Entry]] = {}
    for entry in found:
        by_question.setdefault(entry.question, []).append(entry)
    for each in (*by_question.values(), *(Faq(found, said, columns).groups.values() if standard else ())):
        if len({entry.answer or entry.group for entry in each}) > 1:
            where = _places(sorted({entry.row for entry in each}))
            said.append(f"{shown(each[0].question)} has different answers, in the rows {where}; all are kept")
    said += [f"{counted(of_above, 'row')} without {standard} are of the row above"] * bool(of_above)
    said += [f"{counted(lines, 'cell')} of several lines: each line is a question"] * bool(lines)
    said += [f"{counted(twice, 'question')} repeated with the same answer: each is kept once"] * bool(twice)
    return Faq(found, said[:10] + [f"and {len(said) - 10} more"] * (len(said) > 10), columns), faults


def _part_unlike(found: List[Entry], said: List[str]) -> List[Entry]:
    """Return ``found``: many questions of one answer that look unlike are no variants, which is ``said``."""
    unlike = set()
    for group, each in Faq(found, said, {}).groups.items():
        shares = [overlap(a.question, b.question) for a, b in zip(each, each[1:])]
        if len(each) > MOST_SHARING and sum(shares) < MIN_OVERLAP * len(shares):
            unlike.add(group)
            what = f"{len(each)} questions have the answer {shown(each[0].answer)} and look unlike"
            said.append(f"{what}: read as no variants; if some are, a column 标准问 says which")
    return [entry._replace(group=-1 - n) if entry.group in unlike else entry for n, entry in enumerate(found)]


def _places(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return ", ".join(map(str, rows[:5])) + more


class SearchSteps:
    """The steps from an FAQ to an index that serves: what each does, and what came of them.

    ``config``: of a pipeline; ``reranker``: the exported classifier, '' without one; ``length``: the tokens
    of a text.
    """

    def __init__(self, config: Any, faq: Faq, recipe: RecipeCommands, reranker: str, length: int):
        self.config, self.faq, self.recipe, self.reranker, self.length = config, faq, recipe, reranker, length
        self.folder = Path(config.output_dir) / FOLDER
        self.text = self.folder / "text.txt"  # a document for each answer, to pretrain on
        self.choosing, self.measuring = faq.hold_out(config.seed)
        self.payload = faq.payload
        given = config.model_name_or_path
        self.is_published = bool(given) and kind_of_folder(given) == "embedding"
        self.held_out = {entry.id for entry in (*self.choosing, *self.measuring)}
        self.rest = [entry for entry in faq.entries if entry.id not in self.held_out]
        self.dev, self.learned = self._choose_pairs()
        self.num_learned, self.why_no_encoder = sum(map(len, self.learned.values())), ""
        self.is_trained = not self.is_published and self.num_learned >= BATCH
        self.encoder = given if self.is_published else str(Path(config.output_dir, "encoder"))
        if self.is_published or self.is_trained:
            return
        if len({entry.answer or entry.group for entry in faq.entries}) < 2:
            raise InputError(f"{config.faq_file}: all questions have one answer; add questions of others")
        self.encoder, variants = "", counted(len(self.held_out), "variant")
        self.why_no_encoder = (
            f"no encoder is trained: besides the {variants} held out, {self.num_learned} pairs are there to "
            f"learn from, of {BATCH} needed; give more variants, answers or an embedding model "
            "(--model_name_or_path)"
        )
        if not reranker:  # there is one way to search, and none to choose
            self.choosing, self.measuring = [], [*self.choosing, *self.measuring]

    def describe(self) -> str:
        """Return in words what the FAQ holds, and what its variants are too few for."""
        faq, is_learned = self.faq, not self.is_trained or "variants" in self.learned
        of_variants = sum(len(each) > 1 for each in faq.groups.values())
        few = ["to learn from"] * (not is_learned) + ["to measure the search"] * (not self.measuring)
        return (
            f"{counted(len(faq.entries), 'question')} of {counted(len(faq.groups), 'answer')} "
            f"({of_variants:,} have variants), {'with' if faq.role == ANSWER else 'without'} answers"
            + (f"; too few variants {' or '.join(few)}" if few else "")
        )

    def _choose_pairs(self) -> Tuple[List[Any], Dict[str, List[Any]]]:
        """Return the dev pairs, and those to learn from by their files: none that all share a text."""
        first = {group: each[0] for group, each in self.faq.groups.items()}
        variants = [(e.question, first[e.group].question) for e in self.rest if e is not first[e.group]]
        answers = [(e.question, e.answer) for e in self.rest if e.answer and e.group >= 0]
        dev = [(e.question, first[e.group].question) for e in self.choosing or self.measuring]
        if not dev:
            dev, answers = answers[::20], [pair for n, pair in enumerate(answers) if n % 20]
        pairs = {"variants": variants, "answers": answers}
        return dev, {name: each for name, each in pairs.items() if len({other for _, other in each}) > 1}

    def check_same(self) -> None:
        """Raise InputError if the steps were begun with other questions."""
        path, now = self.folder / "all.jsonl", "".join(_lines(map(self._row, self.faq.entries)))
        if path.is_file() and path.read_text(encoding="utf-8") != now:
            raise InputError(
                f"--faq_file {self.config.faq_file} has changed since {self.config.output_dir} was begun; "
                f"choose another --output_dir, or start anew: {again_with({}, fresh_start='true')}"
            )

    def split(self) -> Step:
        """Write the files of the steps that follow."""
        texts = ([*(e.question for e in each), each[0].answer] for each in self.faq.groups.values())
        _write(self.text, documents(texts))
        files = {"rest": [*map(self._row, self.rest)], "all": [*map(self._row, self.faq.entries)]}
        for name, entries in (("choose", self.choosing), ("measure", self.measuring)):
            answers = ((e, other.id) for e in entries for other in self.faq.groups[e.group])
            files[name] = [
                {"question": e.question, "id": one} for e, one in answers if one not in self.held_out
            ]
        for name, pairs in (*self.learned.items(), ("dev", self.dev)):
            files[name] = [{"anchor": question, "positive": other} for question, other in pairs]
        for name, rows in files.items():
            _write(self.folder / f"{name}.jsonl", _lines(rows))
        kept = f"variants held out: {len(self.choosing)} to choose, {len(self.measuring)} to measure"
        return Step("split the questions", [], decided=lambda: kept)

    def _row(self, entry: Entry) -> Dict[str, str]:
        more = entry.answer or self.faq.groups[entry.group][0].question
        return {"id": entry.id, "text": entry.question, self.payload: more}

    def steps(self, start: Callable[[], str], rate: float, is_new: bool) -> List[Callable[[], Step]]:
        """Return what makes the steps behind pretraining; ``start``: asked once, the model to train from."""
        train = [lambda: self._train(start(), rate, is_new)] if self.is_trained else []
        return [*train, *([self._index, self._evaluate] if self.measuring else []), self._publish]

    def _train(self, start: str, rate: float, is_new: bool) -> Step:
        files = [self.folder / f"{name}.jsonl" for name in self.learned]
        epochs = self.config.epochs or choose_epochs(self.num_learned, BATCH, STEPS)
        words = self.recipe.train_embedding(
            start,
            "encoder",
            train_file=",".join(map(str, files)),
            dev_file=self.folder / "dev.jsonl",
            **({"from_scratch": "true"} if is_new else {}),
            max_seq_len=self.length,
            batch_size=BATCH,
            learning_rate=rate,
            epochs=epochs,
            seed=self.config.seed,
        )
        decided = f"{counted(epochs, 'epoch')} of {' and of '.join(self.learned)}, rate {rate:g}"
        return Step("train an encoder of questions", [words], decided=lambda: decided)

    def _index(self) -> Step:
        words = self._index_words("rest", self.folder / "rest.index", BOTH if self.encoder else BM25)
        return Step("index what is not held out", [words], decided=lambda: f"{len(self.rest):,} questions")

    def _index_words(self, name: str, output: Path, retrieval: str) -> List[str]:
        model = {} if retrieval == BM25 else {"embedding_model": self.encoder}
        flags = {"payload_columns": DECLARED + self.payload, "retrieval": retrieval, **model}
        return words_of("index", input_file=self.folder / f"{name}.jsonl", output_dir=output, **flags)

    def _evaluate(self) -> Step:
        """Measure every way of searching on both halves of the questions that were held out."""
        models = {"embedding_model": self.encoder, "model_path": self.reranker}
        flags = {"long_query": "cut", "text_column": "question", "id_column": "id"}
        flags.update(
            {name: path for name, path in models.items() if path}, index=str(self.folder / "rest.index")
        )
        parts = [self.folder / name for name in (["choose"] if self.choosing else []) + ["measure"]]
        files = [{"input_file": f"{part}.jsonl", "output_file": f"{part}.json"} for part in parts]
        commands = [words_of("evaluate", "search", **flags, **each) for each in files]
        return Step("measure the search", commands, decided=lambda: self.verdict)

    def _publish(self) -> Step:
        retrieval = BM25 if self.way == BM25 else BOTH
        words = self._index_words("all", Path(self.config.output_dir, INDEX), retrieval)
        return Step("index all questions", [words], decided=self._keep_worth)

    def _keep_worth(self) -> str:
        if self.measuring:
            keep_measured(Path(self.config.output_dir, INDEX), self.worth)
        return f"{len(self.faq.entries):,} questions"

    @cached_property
    def way(self) -> str:
        """Return the stage that is served: BM25, which needs no model, unless another is clearly better.

        That is the best of those whose gain over BM25 has an interval above 0 on the choosing questions.
        """
        if not self.choosing:
            return BM25 if self.measuring or not self.encoder else BOTH
        stages = read_json_object(self.folder / "choose.json", "run the same command again")["stages"]
        better = [name for name, stage in stages.items() if stage["gain"][1] > 0]
        return max(better, key=lambda name: stages[name]["mrr"], default=BM25)

    @cached_property
    def measured(self) -> Dict[str, Any]:
        """Return what `evaluate search` measured; {} where too few questions have variants."""
        path = self.folder / "measure.json"
        return read_json_object(path, "run the same command again") if self.measuring else {}

    @property
    def serve_words(self) -> List[str]:
        """Return the command that serves the search."""
        way, _, reranked = self.way.partition(RERANKED[0])
        words = ["ernie-pair", "serve", "--index", str(Path(self.config.output_dir, INDEX))]
        if way != BM25:
            words += ["--embedding_model", self.encoder, *(["--retrieval", way] if way != BOTH else [])]
        return [*words, *(["--model_path", self.reranker] if reranked else [])]

    @cached_property
    def verdict(self) -> str:
        """Return how often the search finds the right answer, beside BM25 alone, and what next."""
        after = f"serve it: {shlex.join(self.serve_words)}"
        return "; ".join(filter(None, [self.worth, self.why_no_encoder, after]))

    @cached_property
    def worth(self) -> str:
        """Return how often the search finds the right answer, beside BM25 alone."""
        if not self.measuring:
            cure = f"add some, in rows of their own with the same {self.payload}, and run again"
            return f"the search was not measured: too few variants; {cure}"
        stages = self.measured["stages"]
        found = stages[self.way]
        line = (
            f"the right answer is first for {_share(found, 'hit@1')} of {self.measured['questions']:,} "
            f"questions that were held out, among the first ten for {_share(found, 'hit@10')}; "
            f"mrr {_share(found, 'mrr')}"
        )
        words = stages[BM25]
        if self.way == BM25:
            best = max(stages, key=lambda name: (name != BM25, stages[name]["mrr"]))
            if best == BM25:  # there is no other
                return f"BM25 alone is served: {line}"
            other = f"{best}: first for {stages[best]['hit@1']:.1%}"
            return f"BM25 alone is served, for no other way was clearly better: {line}; {other}"
        low, high = found["gain"][1:]
        gain = "better than" if low > 0 else "worse than" if high < 0 else "not clearly better than"
        beside = f"{gain} BM25 alone ({words['hit@1']:.1%}, {words['hit@10']:.1%}, mrr {words['mrr']:.3f})"
        return f"{self.way} is {beside}: {line}"

    def table(self) -> List[List[object]]:
        """Return a row for each way of searching: its name, metrics with intervals, and time."""
        rows: List[List[object]] = []
        for name, stage in self.measured.get("stages", {}).items():
            shares = [_share(stage, metric) for metric in ("hit@1", "hit@10", "mrr")]
            rows.append([name, *shares, f"{stage['milliseconds']:.1f}", "served" if name == self.way else ""])
        return rows


def _share(stage: Dict[str, Any], metric: str) -> str:
    form = ".3f" if metric == "mrr" else ".1%"
    value, low, high = (format(one, form) for one in (stage[metric], *stage["intervals"][metric]))
    return f"{value} (95 %: {low} to {high})"


def _lines(rows: Iterable[Dict[str, str]]) -> Iterator[str]:
    return (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write(path: Path, lines: Iterable[str]) -> None:
    with published(path, forced=False) as (draft,):
        draft.write_text("".join(lines), encoding="utf-8")
