"""The questions that an index is measured with, and the texts that answer them, in three kinds of files.

a table or JSON of questions   a row for each question and the id of a text that answers it; the id is empty
                               where no text does
queries with ids, --relevant   judgements: lines of query, 0, text and grade (TREC), or a table of query-id,
                               corpus-id and score (BEIR); grades above 0 answer, and a higher one gains more
JSON of query, pos and neg     as FlagEmbedding has it: the texts of pos answer
"""

import math
from pathlib import Path
from typing import Callable, Collection, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from data_tools.text.tables import JSON_FORMS, detect_form, records
from data_tools.text.text_files import LineRules, read_lines
from data_tools.text.texts import TextColumns, has_ids, read_texts
from ernie_pair.core.errors import InputError, again_with, counted
from ernie_pair.core.files.json_file import is_texts, reads_as_number, shown

TREC, BEIR = 4, 3  # fields of a line of judgements
POSITIVES = {"query", "pos"}


class Question(NamedTuple):
    """A text that is searched for, {id: grade} of the texts that answer it, and the line of the first."""

    text: str
    grades: Dict[str, float]
    line: int


class Known(NamedTuple):
    """What an index holds: its name, the ids of its texts, and what returns {text: ids}."""

    name: str
    ids: Collection[str]
    read_texts: Callable[[], Mapping[str, Sequence[str]]]

    def check(self, name: str, where: str) -> None:
        """Raise InputError for an id that the index has not."""
        if name not in self.ids:
            raise InputError(f"{where}: {self.name} has no text with the id {shown(name)}")


def read_questions(
    path: Path, relevant: str, known: Known, rules: LineRules, columns: TextColumns
) -> List[Question]:
    """Return the questions of a file, each once. Raises InputError for a text that the index has not.

    ``relevant``: the file of judgements, '' where ``path`` says itself which texts answer.
    """
    if not path.is_file():
        raise InputError(f"{path} is not a file; give one of questions")
    if relevant:
        questions = _judged(path, Path(relevant), known, rules, columns)
    elif _has_positives(path, rules):
        questions = _with_positives(path, known, rules)
    else:
        questions = _with_ids(path, known, rules, columns)
    if not any(question.grades for question in questions):
        raise InputError(f"{path} holds no question that a text answers; give one in every row")
    return questions


def _with_ids(path: Path, known: Known, rules: LineRules, columns: TextColumns) -> List[Question]:
    columns = columns._replace(may_lack_ids=True)
    if not has_ids(path, rules, columns):
        raise InputError(
            f"{path}: no column of ids; give a table of questions and the ids of their answers, and "
            f"name its columns where it has no header: {again_with({}, text_column='1', id_column='2')}; or "
            "queries with ids, and --relevant"
        )
    questions: Dict[str, Question] = {}
    for row in read_texts(path, rules=rules, columns=columns):
        question = questions.setdefault(row.text, Question(row.text, {}, row.line))
        if row.has_id:
            known.check(row.id, f"{path}:{row.line}")
            question.grades[row.id] = 1.0
    return list(questions.values())


def _judged(
    path: Path, relevant: Path, known: Known, rules: LineRules, columns: TextColumns
) -> List[Question]:
    """Return the queries of ``path`` by their ids, each judged at least once."""
    judged: Dict[str, Dict[str, float]] = {}
    for number, query, text, grade in _judgements(relevant):
        known.check(text, f"{relevant}:{number}")
        found = judged.setdefault(query, {})
        if text in found:
            raise InputError(f"{relevant}:{number}: {query} and {text} are judged twice; keep one line")
        found[text] = grade
    questions = []
    for row in read_texts(path, rules=rules, columns=columns):
        if row.id not in judged:
            raise InputError(
                f"{path}:{row.line}: {relevant} judges no text for the query {shown(row.id)}; judge one, "
                "with the grade 0 if nothing answers it, or leave the query out"
            )
        grades = {text: grade for text, grade in judged.pop(row.id).items() if grade > 0}
        questions.append(Question(row.text, grades, row.line))
    if judged:
        raise InputError(
            f"{relevant}: {path} has no query with the id {shown(next(iter(judged)))}, nor "
            f"{counted(len(judged) - 1, 'other')} judged there; name its column with --id_column"
        )
    return questions


def _judgements(path: Path) -> Iterator[Tuple[int, str, str, float]]:
    """Yield (line, query, text, grade) of a file of TREC or of BEIR. Raises InputError for another line."""
    if not path.is_file():
        raise InputError(f"{path} is not a file; give one of judgements")
    for number, line in enumerate(read_lines(path), start=1):
        text = line.decode("utf-8", "replace")  # of BEIR, whose ids may hold spaces
        fields = [field.strip() for field in text.split("\t")] if "\t" in text else text.split()
        is_there = len(fields) in (TREC, BEIR)
        if number == 1 and is_there and not reads_as_number(fields[-1]):
            continue  # a header
        is_grade = is_there and reads_as_number(fields[-1]) and math.isfinite(float(fields[-1]))
        if any(fields) and not is_grade:
            raise InputError(f"{path}:{number}: not QUERY 0 TEXT GRADE (TREC), nor QUERY TEXT GRADE (BEIR)")
        if any(fields):
            yield number, fields[0], fields[-2], float(fields[-1])


def _has_positives(path: Path, rules: LineRules) -> bool:
    form = detect_form(path, rules.encoding)
    if form.kind not in JSON_FORMS:
        return False
    _, row = next(records(path, form, rules.encoding), (0, None))
    return isinstance(row, dict) and {*row} >= POSITIVES


def _with_positives(path: Path, known: Known, rules: LineRules) -> List[Question]:
    ids = known.read_texts()
    questions: Dict[str, Question] = {}
    for number, row in records(path, detect_form(path, rules.encoding), rules.encoding):
        if isinstance(row, InputError):
            raise row
        query, texts = (row.get(name) for name in ("query", "pos")) if isinstance(row, dict) else (None, None)
        if not (isinstance(query, str) and query.strip() and isinstance(texts, list) and is_texts(texts)):
            raise InputError(f'{path}:{number}: not {{"query": text, "pos": [texts]}}; correct it')
        for text in texts:
            if text not in ids:
                raise InputError(f"{path}:{number}: {known.name} has no text {shown(text)}")
        question = questions.setdefault(query, Question(query, {}, number))
        question.grades.update((name, 1.0) for text in texts for name in ids[text])
    return list(questions.values())
