"""The same pipeline a week later, with more pairs: a version beside the first, compared and served."""

import json
import shutil
from dataclasses import replace
from urllib.request import Request, urlopen

import pandas as pd
import pytest
from pages import activated_environment, block_with, run_shell
from started import service
from tiny_pair import toy_rows, write_rows
from tiny_ship import write_trained

from ernie_pair.checks.pipeline import pipeline
from ernie_pair.checks.pipeline_inputs import PipelineConfig
from ernie_pair.checks.versions import name_of, served_in, versions_in
from ernie_pair.core.errors import InputError
from ernie_pair.service.serve import API_KEY

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(600)]
ROWS = list(toy_rows(260, seed=5))


def texts_in(folder, part):
    lines = (folder / "pairs" / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
    return {(row["text_a"], row["text_b"]) for row in map(json.loads, lines)}


@pytest.fixture(scope="module")
def first(module_path):
    """The config of a pipeline that is done: 160 pairs on a start that was given."""
    start = module_path / "start"
    write_trained(start)
    train = write_rows(module_path / "pairs.tsv", ROWS[:160])
    config = PipelineConfig(
        train_file=str(train), output_dir=str(module_path / "out"), model_name_or_path=str(start), epochs=1,
        pretrain=False, device="cpu",
    )  # fmt: skip
    pipeline(config)
    return config


def test_more_pairs_make_a_version_beside_the_first(first, module_path, capsys):
    out = module_path / "out"
    write_rows(module_path / "pairs.tsv", ROWS)
    pipeline(replace(first, dry_run=True))
    assert f"version      {out / 'v2'}, after {out}" in capsys.readouterr().err and not (out / "v2").exists()
    made = pipeline(first)
    assert made["model"] == out / "v2" / "exported"
    for part in ("train", "dev", "test"):
        assert texts_in(out, part) <= texts_in(out / "v2", part)
    assert len(texts_in(out, "test")) < len(texts_in(out / "v2", "test"))
    told = capsys.readouterr().out
    assert "v2 beside v1 on the same" in told and f"{out / 'current'} leads to" in told
    flips = pd.read_excel(out / "v2" / "compared" / "flips.xlsx")
    assert [*flips.columns[:5]] == ["text_a", "text_b", "label", "before", "now"]
    assert (flips["before"] != flips["now"]).all()
    pipeline(first)
    assert (
        f"{out / 'v2'} was made from the same inputs" in capsys.readouterr().err and not (out / "v3").exists()
    )


def test_the_commands_that_watch_a_service(first, module_path, tmp_path):
    """Two hundred requests are logged as the page says, by hashes, and are like the test pairs."""
    shutil.copytree(module_path / "out" / "exported", tmp_path / "ship")
    write_rows(tmp_path / "test.tsv", ROWS[:200])
    log, environment = tmp_path / "requests.jsonl", {**activated_environment(), API_KEY: "secret"}
    start, reload = block_with("watch a service").commands
    words = start.replace("--log_share 0.1", "--log_share 1").split()[2:]
    placed = [str(tmp_path / word) if word in ("ship", log.name) else word for word in words]
    with service(*placed, key="secret") as address:
        for row in ROWS[:200]:
            body = json.dumps({"pairs": [row[:2]]}).encode()
            headers = {"Authorization": "Bearer secret"}
            urlopen(Request(f"{address}/predict", body, headers)).close()
        here = address.removeprefix("http://")
        assert "secret" not in run_shell(reload.replace("127.0.0.1:8000", here), tmp_path, environment)
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 200 and ROWS[0][0] not in log.read_text(encoding="utf-8")
    (drift,) = block_with("watch its drift").commands
    assert run_shell(drift, tmp_path, environment).startswith("nothing moved")


def test_current_leads_where_it_is_told(first, module_path):
    out = module_path / "out"
    for version, place in {"v2": "v2/exported", "v1": "exported"}.items():
        pipeline(PipelineConfig(output_dir=str(out), use=version))
        assert str((out / "current").readlink()) == place
    with pytest.raises(InputError, match=r"use v9: .* has no such version with a model \(there: v1, v2\)"):
        pipeline(PipelineConfig(output_dir=str(out), use="v9"))


def test_versions_are_found_by_number_and_told_from_a_pipeline(first, module_path, tmp_path):
    out = shutil.copytree(module_path / "out", tmp_path / "out", symlinks=True)
    (out / "v2").rename(out / "v7")
    assert [*versions_in(out)] == [1, 7] and served_in(out) == out
    pipeline(PipelineConfig(output_dir=str(out), use="v7"))
    assert served_in(out) == out / "v7"
    with pytest.raises(InputError, match="v7 is a version; give output_dir .*/out$"):
        pipeline(PipelineConfig(output_dir=str(out / "v7"), use="v1"))
    shutil.rmtree(out / "v7" / "exported")
    assert served_in(out) is None and name_of(out / "v7") == "v7" and name_of(out) == "v1"


def test_a_version_that_was_begun_goes_on(first, module_path):
    out = module_path / "out"
    record = json.loads((out / "v2" / "pipeline.json").read_text())
    (out / "v2" / "pipeline.json").write_text(json.dumps({**record, "outputs": {}}))
    (out / "v2" / "report.html").unlink()
    assert pipeline(first)["model"] == out / "v2" / "exported" and not (out / "v3").exists()
    assert json.loads((out / "v2" / "pipeline.json").read_text())["inputs"] == record["inputs"]


def test_a_version_begun_with_other_data_is_named(first, module_path, tmp_path):
    out = shutil.copytree(module_path / "out", tmp_path / "out", symlinks=True)
    record = json.loads((out / "v2" / "pipeline.json").read_text())
    record["outputs"] = {}
    (out / "v2" / "pipeline.json").write_text(json.dumps(record))
    train = write_rows(tmp_path / "pairs.tsv", ROWS[:250])
    config = replace(first, output_dir=str(out), train_file=str(train))
    with pytest.raises(InputError, match=f"v2 was begun with other data; .* mv {out}/v2 {out}.begun-v2"):
        pipeline(config)
    (out / "v2").rename(tmp_path / "out.begun-v2")
    pipeline(replace(config, dry_run=True))


def test_a_version_that_was_edited_is_no_start(first, module_path, tmp_path):
    out = shutil.copytree(module_path / "out", tmp_path / "out", symlinks=True)
    shutil.rmtree(out / "v2")
    train = write_rows(tmp_path / "pairs.tsv", ROWS[:200])
    with open(out / "pairs" / "test.jsonl", "a", encoding="utf-8") as file:
        file.write("\n")
    with pytest.raises(InputError, match="test.jsonl was changed since it was made, and its rows"):
        pipeline(replace(first, output_dir=str(out), train_file=str(train)))
