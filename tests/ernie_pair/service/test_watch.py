"""What is told of answers: the log of requests, numbers, a model in the shadow; and reloading."""

import asyncio
import json
import os
import re
import shutil
import signal
import stat
from functools import partial

import pytest
from fake_predictor import Model, ask
from tiny_search import write_exports

from ernie_pair.core.errors import CheckpointError, InputError
from ernie_pair.core.files.json_file import read_json_object, write_json
from ernie_pair.inference.predictor import PairPredictor

for library in ("httpx", "fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(library)

from test_serve_connections import serving, wait_until  # noqa: E402

from ernie_pair.service import request_log, serve, watch  # noqa: E402 - they need the libraries of the extra
from ernie_pair.service.request_log import RequestLog  # noqa: E402
from ernie_pair.service.service import ServedModels  # noqa: E402
from ernie_pair.service.watch import Shadow, WatchOptions  # noqa: E402

PAIRS = [["x", "y"], ["xx", "y"]]
KEY = {"authorization": "Bearer key"}


def post(client, pairs=PAIRS, name="one"):
    return client.post("/predict", json={"pairs": pairs}, headers={"x-request-id": name, **KEY})


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def number_in(text, name):
    found = re.search(rf"^ernie_pair_{re.escape(name)} (.+)$", text, re.M)
    return found and float(found[1])


@pytest.mark.parametrize("hashes", [False, True])
def test_each_pair_is_a_line_that_only_its_owner_reads(tmp_path, hashes):
    path = tmp_path / "requests.jsonl"
    options = WatchOptions(RequestLog(path, 1 << 20), 1.0, hashes)
    answer = ask(Model(), post, more=(options,))
    assert answer.headers["x-model"] == "a" * 12 and stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = lines_of(path)
    assert first["scores"] == [0.02, 0.98] and second["scores"] == [0.03, 0.97]
    assert (first["label"], second["label"]) == ("even", "odd") and second["characters"] == [2, 1]
    shared = {"request": "one", "endpoint": "/predict", "model": "a" * 64}
    for line in (first, second):
        assert shared.items() <= line.items() and line["milliseconds"] > 0
    assert first["time"].endswith("+00:00") and ("texts" in first) != hashes
    text = first["sha256"][0][:8] if hashes else first["texts"][0]
    assert text == ("2d711642" if hashes else "x")


def test_a_share_keeps_all_lines_of_a_request_or_none(tmp_path):
    path = tmp_path / "requests.jsonl"
    options = WatchOptions(RequestLog(path, 1 << 20), 0.3)

    async def many(client):
        for number in range(200):
            await post(client, name=f"r{number}")

    ask(Model(), many, more=(options,))
    kept = [line["request"] for line in lines_of(path)]
    assert 40 < len(set(kept)) < 80 and len(kept) == 2 * len(set(kept))


def test_full_files_are_renamed_and_the_oldest_goes(tmp_path):
    log = RequestLog(tmp_path / "log", 10_000)
    log.write(b"moved\n")
    (tmp_path / "log").rename(tmp_path / "moved")
    log.write(b"deleted\n")
    (tmp_path / "log").unlink()
    assert (tmp_path / "moved").read_bytes() == b"moved\n"
    (tmp_path / "moved").unlink()
    line = request_log.START + b"x" * 189 + b"\n"
    for _ in range(200):
        log.write(line)
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == request_log.FILES and all(path.stat().st_size <= 1000 for path in files)
    assert all(path.read_bytes() == line * 5 for path in files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_file_that_is_no_log_is_refused_unchanged(tmp_path):
    path = tmp_path / "log"
    (tmp_path / "log.3").write_text("mine")
    with pytest.raises(InputError, match="log.3 is no log of requests"):
        RequestLog(path, 1000)
    (tmp_path / "log.3").unlink()
    RequestLog(path, 1000)
    with pytest.raises(InputError, match="another service writes it"):
        RequestLog(path, 1000)
    with pytest.raises(InputError, match="No such file"):
        RequestLog(tmp_path / "none" / "log", 1000)


def test_a_full_disk_is_one_warning_and_fails_no_request(tmp_path, monkeypatch, caplog):
    path = tmp_path / "log"
    options, write = WatchOptions(RequestLog(path, 1 << 20)), os.write

    def full(file, content):
        return write(file, content[:-9]) if content.startswith(request_log.START) else write(file, content)

    async def some(client):
        monkeypatch.setattr(request_log.os, "write", full)
        answers = [await post(client) for _ in range(3)]
        while number_in((await client.get("/metrics")).text, "log_dropped_lines_total") < 6:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(request_log.os, "write", write)
        return [*answers, await post(client, name="last")]

    assert [answer.status_code for answer in ask(Model(), some, more=(options,))] == [200] * 4
    assert [line["request"] for line in lines_of(path)] == ["last"] * 2
    assert caplog.text.count("lines of the log are dropped") == 1 and "No space left" in caplog.text


def test_what_has_no_room_is_dropped():
    aside, gate = watch.Aside("test", 5), []
    assert aside.offer(9, wait_until, lambda: gate)  # one alone
    assert not aside.offer(1, gate.append, 1)
    gate.append(1)
    wait_until(lambda: not aside._waiting)
    assert aside.offer(5, gate.append, 2)
    aside.close()
    assert gate == [1, 2]


def test_metrics_tell_scores_classes_and_models():
    async def some(client):
        await post(client)
        return (await client.get("/metrics")).text

    text = ask(Model(), some)
    labels = f'{{date="",fingerprint="{"a" * 64}",name="ship",version=""}}'
    assert number_in(text, f"model_info{labels}") == 1
    assert number_in(text, 'decisions_total{label="odd"}') == 1
    assert number_in(text, 'scores_bucket{endpoint="/predict",le="0.95"}') == 0
    assert number_in(text, 'scores_bucket{endpoint="/predict",le="1.0"}') == 2


def test_tokens_and_cut_texts_are_counted_as_the_model_reads(tmp_path):
    folder = write_exports(tmp_path) / "ship"
    predictor = PairPredictor(folder)
    predictor.decide_by(None, "average")  # which reads both orders
    long = "今" * predictor.max_seq_len

    async def some(client):
        await post(client, [["今", "☃"], [long, "今"]])
        return (await client.get("/metrics")).text

    text = ask(predictor, some, limits={"max_chars": 999})
    room = predictor.max_seq_len - 3
    assert number_in(text, "tokens_total") == 2 + room and number_in(text, "tokens_unknown_total") == 1
    assert number_in(text, "inputs_total") == 2 and number_in(text, "inputs_cut_total") == 1
    date = re.search(r'model_info{date="(.+?)"', text)[1]
    assert date.endswith("+00:00") and predictor.identity[0] in text


# --- a model in the shadow


class Other(Model):
    """Decides otherwise where the length is even."""

    def predict(self, pairs):
        found = super().predict(pairs)
        found.labels[:] = ["odd"] * len(pairs)
        return found


def test_a_shadow_scores_behind_the_answer_and_says_so(tmp_path):
    path, other = tmp_path / "log", Other()

    async def some(client):
        other.gate.clear()
        answer = await post(client)  # while the shadow cannot
        other.gate.set()
        while number_in((text := (await client.get("/metrics")).text), "shadow_difference_count") != 2:
            await asyncio.sleep(0.01)
        return answer, text

    options = WatchOptions(RequestLog(path, 1 << 20))
    answer, text = ask(Model(), some, more=(options,), shadow=Shadow(lambda: other))
    assert answer.status_code == 200
    assert [line["shadow_scores"] for line in lines_of(path)] == [[0.02, 0.98], [0.03, 0.97]]
    for agrees in ("true", "false"):
        assert number_in(text, f'shadow_pairs_total{{agrees="{agrees}"}}') == 1


def test_pairs_that_a_shadow_has_no_time_for_are_counted(tmp_path, monkeypatch):
    path, other = tmp_path / "log", Other()
    monkeypatch.setattr(watch, "MOST_PAIRS", 3)

    async def some(client):
        other.gate.clear()
        await post(client)
        late = await post(client)
        other.gate.set()
        return late, (await client.get("/metrics")).text

    options = WatchOptions(RequestLog(path, 1 << 20))
    late, text = ask(Model(), some, more=(options,), shadow=Shadow(lambda: other))
    assert late.status_code == 200 and number_in(text, "shadow_missed_pairs_total") == 2
    assert [line.get("shadow_scores") is None for line in lines_of(path)].count(True) == 2


# --- reloading


class Newer(Model):
    identity = ("b" * 64, "")


def test_a_reload_swaps_without_dropping_a_request():
    old, new = Model(), Newer()
    reopen = lambda: (ServedModels(new, model_name="ship"), None)  # noqa: E731

    async def some(client):
        old.gate.clear()
        first = asyncio.ensure_future(post(client))
        while not old.calls:
            await asyncio.sleep(0.001)
        waits = asyncio.ensure_future(post(client, name="two"))
        await asyncio.sleep(0.01)
        reloading = asyncio.ensure_future(client.post("/admin/reload", headers=KEY))
        while (await client.get("/health", headers=KEY)).json()["versions"][0]["fingerprint"][0] != "b":
            await asyncio.sleep(0.001)
        third = await post(client)
        old.gate.set()
        return await first, await waits, third, await reloading

    answers = ask(old, some, key="key", more=(WatchOptions(), reopen))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert [answer.headers["x-model"][0] for answer in answers[:3]] == ["a", "a", "b"]
    assert answers[3].json()["models"][0]["fingerprint"] == "b" * 64


def test_what_cannot_be_opened_is_told_and_the_old_goes_on(caplog):
    def damaged():
        raise CheckpointError("model.onnx is not the file that was exported; export the model again")

    other = Newer()
    other.exported = type(Model.exported)(Model.exported.folder, ("a", "b", "c"), 128, 1.0, {})
    for reopen, reason in (
        (damaged, "model.onnx is not the file"),
        (lambda: (ServedModels(other), None), "its answers have another form, (('a', 'b', 'c'), None)"),
    ):

        async def both(client):
            return await client.post("/admin/reload", headers=KEY), await post(client)

        refused, answer = ask(Model(), both, key="key", more=(WatchOptions(), reopen))
        assert refused.status_code == 409 and reason in refused.json()["error"] and reason in caplog.text
        assert answer.status_code == 200 and answer.headers["x-model"] == "a" * 12


def test_nobody_reloads_without_the_key():
    reload = partial(lambda headers, client: client.post("/admin/reload", headers=headers))
    reopen = lambda: (ServedModels(Newer()), None)  # noqa: E731
    for key, status in (("", 403), ("key", 401)):
        answer = ask(Model(), partial(reload, {}), key=key, more=(WatchOptions(), reopen))
        assert answer.status_code == status


def test_sighup_follows_a_link_to_the_new_export(tmp_path):
    ship, link = write_exports(tmp_path) / "ship", tmp_path / "current"
    newer = shutil.copytree(ship, tmp_path / "newer")
    content = read_json_object(newer / "export.json", "")
    write_json(newer / "export.json", {**content, "temperature": 3.0})
    link.symlink_to(ship)
    config = serve.ServeConfig(str(link), shadow_model_path=str(ship))
    served, shadow = serve._open_all(config)
    link.unlink()
    link.symlink_to(newer)
    assert served.predictor.identity == shadow.model.identity != PairPredictor(newer).identity
    again, _ = serve._open_all(config)
    assert again.predictor.identity == PairPredictor(newer).identity
    assert again.model_name == served.model_name == "current"
    with serving() as service:
        service.get("/health")
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("reloaded: none aaaaaaaaaaaa" in line for line in service.said))
        service.end()


def test_a_sighup_while_the_models_open_is_kept():
    with serving(hang_up=True) as service:
        wait_until(lambda: any("reloaded: none aaaaaaaaaaaa" in line for line in service.said))
        service.end()
