"""Two weeks with a model: it is trained, served and watched, until day 8 brings other texts.

Rows of these are labelled, a second version learns them, runs in the shadow, is switched to, and back.
"""

import json
from dataclasses import replace
from http.client import HTTPConnection

import numpy as np
import pytest
from started import service
from tiny_pair import CHARACTERS, toy_rows, write_rows
from tiny_ship import write_trained

from ernie_pair.checks.pipeline import pipeline
from ernie_pair.checks.pipeline_inputs import PipelineConfig
from ernie_pair.labelling.asked_labels import AuditLabelsConfig, SelectConfig, audit_labels, select
from ernie_pair.service.drift import DriftConfig, drift

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(600)]
A_DAY, DRIFT = 250, 8


def traffic(day):
    """The pairs of a day; from DRIFT on most first texts are longer than any before."""
    rng = np.random.default_rng(day)
    for left, right, _ in toy_rows(A_DAY, seed=200 + day):
        if day >= DRIFT and rng.random() < 0.8:
            left += "".join(rng.choice(list(CHARACTERS), 6))
        yield left, right


def label_of(left, right):
    return int("好" in right)


class Served:
    """The answers of a service, over one connection."""

    def __init__(self, address):
        self._connection = HTTPConnection(address.removeprefix("http://"), timeout=60)

    def ask(self, path, body=None):
        headers = {"Authorization": "Bearer secret"}
        self._connection.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
        response = self._connection.getresponse()
        content = response.read().decode()
        assert response.status == 200, content
        return response.headers["X-Model"], content

    def predict(self, pairs):
        return {self.ask("/predict", {"pairs": [pair]})[0] for pair in pairs}


def test_two_weeks(tmp_path, capsys):
    rows = list(toy_rows(200, seed=5))
    out, log, train = tmp_path / "out", tmp_path / "requests.jsonl", tmp_path / "pairs.tsv"
    write_trained(tmp_path / "start")
    write_rows(train, rows)
    week = PipelineConfig(
        train_file=str(train), output_dir=str(out), model_name_or_path=str(tmp_path / "start"), epochs=1,
        pretrain=False, device="cpu",
    )  # fmt: skip
    pipeline(week)

    # Served and logged for eight days; what is asked is like the pairs of the test until the last of them.
    with service("--model_path", out / "current", "--log_requests", log, key="secret") as address:
        served = Served(address)
        (first,) = set.union(*(served.predict(traffic(day)) for day in range(1, DRIFT + 1)))
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == DRIFT * A_DAY == 2000
    write_rows(tmp_path / "tested.tsv", toy_rows(400, seed=6))
    for day in range(1, DRIFT + 1):
        with open(log, "w", encoding="utf-8") as file:
            for number, line in enumerate(lines[: day * A_DAY]):
                dated = {**line, "time": f"2026-12-{number // A_DAY + 1:02}T12:00:00.000+00:00"}
                file.write(json.dumps(dated, ensure_ascii=False) + "\n")
        page = tmp_path / f"day-{day}.html"
        watched = DriftConfig(str(tmp_path / "tested.tsv"), str(log), str(page), str(out / "current"))
        verdict = drift(watched)["verdict"]
        begun = verdict.partition("; first on 2026-12-08: ")[2]
        assert "lengths moved" in begun if day == DRIFT else verdict == "nothing moved", (day, verdict)

    # What is asked is worth a label; two people label it, and differ once.
    asked = tmp_path / "asked.jsonl"
    select(SelectConfig(
        model_path=str(out / "current"), input_file=str(log), labelled_files=str(train), rows=80,
        annotators=2, output_file=str(asked),
    ))  # fmt: skip
    chosen = [json.loads(line) for line in asked.read_text(encoding="utf-8").splitlines()]
    assert len({(row["text_a"], row["text_b"]) for row in chosen}) == 80
    for row in chosen:
        row["label_1"] = row["label_2"] = label_of(row["text_a"], row["text_b"])
    chosen[0]["label_2"] = 1 - chosen[0]["label_1"]
    filled = tmp_path / "filled.jsonl"
    filled.write_text("".join(json.dumps(row) + "\n" for row in chosen), encoding="utf-8")
    labelled = tmp_path / "labelled.tsv"
    audit_labels(AuditLabelsConfig(asked=str(asked), label_file=str(filled), output_file=str(labelled)))
    new = [line.split("\t") for line in labelled.read_text(encoding="utf-8").splitlines()]
    assert len(new) >= 79 and "kappa" in capsys.readouterr().out

    # The second week: the same command, with the new rows behind the old ones.
    write_rows(train, [*rows, *((row["text_a"], row["text_b"], row["label_1"]) for row in chosen[1:])])
    pipeline(week)
    assert "v2 beside v1 on the same" in capsys.readouterr().out
    pipeline(replace(week, train_file="", use="v1"))
    options = ["--model_path", out / "current", "--shadow_model_path", out / "v2" / "exported"]
    with service(*options, key="secret") as address:
        served = Served(address)
        assert served.predict(list(traffic(9))[:50]) == {first}
        assert 'ernie_pair_shadow_pairs_total{agrees="' in served.ask("/metrics")[1]
        models = []
        for version in ("v2", "v1"):
            pipeline(PipelineConfig(output_dir=str(out), use=version))
            served.ask("/admin/reload", {})
            models += served.predict(list(traffic(10))[:20])
        assert models[1] == first != models[0]
