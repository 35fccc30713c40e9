"""Whether a log is like its reference: by simulation, and for logs of a service in this process."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from fake_predictor import ask
from tiny_search import texts_of, write_exports

from ernie_pair.core.errors import InputError
from ernie_pair.inference.predictor import PairPredictor
from ernie_pair.service.drift import DriftConfig, compare, compare_days, correct, drift, items_of


def drawn(rng, count=400, shift=0.0, longer=0.0, unknown=0.02, cut=0.05, day="2026-11-30"):
    scores = 1 / (1 + np.exp(-rng.normal(shift, 2, count)))
    labels, lengths = [str(int(score > 0.5)) for score in scores], np.round(rng.normal(20 + longer, 5, count))
    rare = (rng.random(count) < unknown) * 0.1
    return items_of(zip([()] * count, [day] * count, labels, scores, lengths, rare, rng.random(count) < cut))


def alarms(reference, found):
    return [test["name"] for test in compared(reference, found) if test["p"] < 0.05]


def compared(reference, found):
    tests = compare(reference, found)
    correct(tests)
    return tests


def test_splits_of_one_distribution_seldom_raise_an_alarm():
    rng = np.random.default_rng(0)
    raised = sum(bool(alarms(drawn(rng), drawn(rng))) for _ in range(200))
    assert raised <= 10  # 5 %


@pytest.mark.parametrize("planted, moved", [
    ({"shift": 2.0}, ["scores", "classes"]),
    ({"longer": 4.0}, ["lengths"]),
    ({"unknown": 0.3}, ["unknown tokens"]),
    ({"cut": 0.3}, ["cut texts"]),
])  # fmt: skip
def test_a_planted_drift_is_found_and_nothing_else(planted, moved):
    rng = np.random.default_rng(1)
    found = compared(drawn(rng), drawn(rng, **planted))
    assert [test["name"] for test in found if test["p"] < 0.05] == moved
    assert all((test["psi"] > 0.1) == (test["name"] in moved) for test in found)


def test_the_day_on_which_a_drift_began_is_found():
    rng, first, day_of = np.random.default_rng(2), [], "2026-12-{:02}".format
    for _ in range(100):
        days = range(1, 15)
        log = pandas.concat(
            [drawn(rng, 140, shift=1.5 if day >= 8 else 0.0, day=day_of(day)) for day in days]
        )
        tests = compare_days(drawn(rng), log)
        correct([test for of_day in tests.values() for test in of_day])
        first.append(min(day for day, of_day in tests.items() if any(test["p"] < 0.05 for test in of_day)))
    assert sum(day == day_of(8) for day in first) >= 95


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of ship, 80 pairs of the test and a log of the same; lines are changed by the tests."""
    for library in ("httpx", "fastapi", "prometheus_client"):
        pytest.importorskip(library)
    from ernie_pair.service.request_log import RequestLog
    from ernie_pair.service.watch import WatchOptions

    folder = write_exports(tmp_path_factory.mktemp("drift"))
    texts = texts_of(160)
    pairs = list(zip(texts[::2], texts[1::2]))
    lines = [f"{left}\t{right}\n" for left, right in pairs]
    (folder / "test.tsv").write_text("".join(lines), encoding="utf-8")
    options = WatchOptions(RequestLog(folder / "log", 1 << 20))
    limits = {"max_pairs": 99, "max_body": 99999}
    predictor = PairPredictor(folder / "ship")
    send = lambda client: client.post("/predict", json={"pairs": pairs})  # noqa: E731
    ask(predictor, send, limits=limits, more=(options,))
    return folder


@pytest.fixture
def asked(made, tmp_path):
    """The flags, and a log of its own."""
    log = tmp_path / "log"
    log.write_bytes((made / "log").read_bytes())
    return DriftConfig(f"{made}/test.tsv", f"{log}", f"{tmp_path}/drift.html", f"{made}/ship")


def change(path, *changes):
    """Change lines of a log, each by the change of its turn."""
    lines = list(map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()))
    with open(path, "w", encoding="utf-8") as log:
        for number, line in enumerate(lines):
            log.write(json.dumps({**line, **changes[number % len(changes)]}) + "\n")


def test_the_same_pairs_have_not_moved(asked, made, capsys):
    found = drift(asked)
    assert found["verdict"] == "nothing moved" == capsys.readouterr().out.splitlines()[0]
    assert {test["name"] for test in found["tests"]} >= {"scores", "classes", "lengths", "unknown tokens"}
    assert all(test["before"] == pytest.approx(test["after"], abs=1e-5) for test in found["tests"])
    page = Path(asked.output_file).read_text(encoding="utf-8")
    assert "<h1>Drift: nothing moved</h1>" in page
    again = replace(asked, reference=asked.log, model_path="", output_file=asked.output_file + ".html")
    assert drift(again)["model"] == found["model"] == PairPredictor(made / "ship").identity[0]


def test_what_moved_is_told_by_day_and_with_new_texts(asked):
    new = {"texts": ["☃☃", "好"], "unknown": 0.7, "scores": [0.01, 0.99]}
    change(asked.log, new, {**new, "time": "2026-12-01T00:00:00.000+00:00"})
    found = drift(asked)
    assert found["verdict"].startswith("scores moved: PSI ") and "unknown tokens moved" in found["verdict"]
    assert "; first on" not in found["verdict"]
    assert [(row["rows"], row["moved"]) for row in found["By day"]] == 2 * [(40, "too few rows")]
    assert found["New texts"][0]["text"] == "☃☃ | 好" and len(found["New texts"]) == 1


def test_hashed_texts_are_no_examples(asked):
    change(asked.log, {"texts": None, "sha256": ["a", "b"]})
    assert drift(asked)["New texts"] == []
    assert "holds hashes of the texts" in Path(asked.output_file).read_text(encoding="utf-8")


def test_damaged_lines_are_counted_by_file_and_line(asked, capfd):
    with open(asked.log, "ab") as log:
        log.write(b'{"time": "2026\n{"endpoint": 3}\n\xff\n')
        line = Path(asked.log).read_bytes().splitlines(True)[0]
        log.write(line.replace(json.loads(line)["time"].encode(), b"yesterday"))
    assert drift(asked)["verdict"] == "nothing moved"
    assert f"{asked.log}:81: damaged; 4 such lines left out" in capfd.readouterr().err


def test_what_cannot_be_compared_is_refused_in_a_line(asked, tmp_path):
    own = PairPredictor(asked.model_path).identity[0]
    with pytest.raises(InputError, match="no line of endpoint /rank; there are: /predict"):
        drift(replace(asked, endpoint="/rank"))
    with pytest.raises(InputError, match="is no log: name the model"):
        drift(replace(asked, model_path=""))
    with pytest.raises(InputError, match="is a page"):
        drift(replace(asked, output_file="drift"))
    few = tmp_path / "few.tsv"
    few.write_text("今天\t明天\n" * 10, encoding="utf-8")
    with pytest.raises(InputError, match="few.tsv: 10 rows are too few to compare; give 50 or more"):
        drift(replace(asked, reference=str(few)))
    change(asked.log, {"model": "c" * 64})
    with pytest.raises(InputError, match=f"is of the model {'c' * 12}, not of {own[:12]}"):
        drift(asked)
    with pytest.raises(InputError, match="No such file"):
        drift(replace(asked, log=f"{tmp_path}/none"))
