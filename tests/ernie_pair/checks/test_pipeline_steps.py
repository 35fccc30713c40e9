"""What the pipeline decides and the commands it runs, with a program in place of Python that records them."""

import json
import multiprocessing.spawn  # noqa: F401 - which keeps the Python that it finds when it is first imported
from dataclasses import replace

import numpy as np
import pytest
import tiny_pair
from tiny_models import write_bert, write_sentence
from tiny_ship import write_trained

from ernie_pair.checks import pipeline_inputs
from ernie_pair.checks.pipeline import MIN_STEPS, Plan, pipeline
from ernie_pair.checks.pipeline_inputs import PipelineConfig, inspect_inputs, measure_text
from ernie_pair.core.errors import CheckpointError, InputError, MachineError
from ernie_pair.core.files.atomic_folder import only_writer

# It makes what later steps read of each command.
PROGRAM = """#!/bin/sh
shift 3
echo "$*" >>'{folder}/asked'
for word in "$@"; do
    case $word in
    --output_dir=*) dir=${{word#*=}} ;;
    --output_prefix=*) prefix=${{word#*=}} ;;
    --output_file=*) file=${{word#*=}} ;;
    esac
done
[ -z "$dir" ] || mkdir -p "$dir"
case "$*" in
'prepare pairs'*)
    for label in 0 1; do
        printf '{{"text_a": "开户", "text_b": "怎么开户", "label": "%s"}}\n' $label
    done | tee "$dir/dev.jsonl" >"$dir/test.jsonl"
    for n in 1 2 3; do
        printf '{{"text_a": "开户%s", "text_b": "怎么开户%s", "label": "%s"}}\n' $n $n $((n > 1))
    done >"$dir/train.jsonl"
    ;;
prepare*)
    mkdir -p "${{prefix%/*}}"
    echo '{{"documents": {documents}, "tokens": 50000}}' >"$prefix.manifest.json" ;;
new-model*) echo '{{"vocab_size": 3000}}' >"$dir/config.json" ;;
launch*|train*) echo '{{"step": 1, "split": "train", "loss": 0.5}}' >"$dir/metrics.jsonl" ;;
'evaluate search'*) cp '{folder}/search.json' "$file" ;;
evaluate*)
    echo '{{"accuracy": 0.75, "rows": 40, "threshold": 0.4,' >"$file"
    echo '"shared_characters": {{"accuracy": 0.8}}, "start": {{"line": "AUC fell"}}}}' >>"$file" ;;
esac
"""


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """Puts the program in place of Python; returns a function that lists the commands it was given."""

    def put(documents=40):
        python = tmp_path / "python"
        python.write_text(PROGRAM.format(folder=tmp_path, documents=documents))
        python.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(python))

    put()
    found = lambda: (tmp_path / "asked").read_text().splitlines()  # noqa: E731
    found.put = put
    return found


@pytest.fixture
def config(tmp_path):
    """Labelled pairs and a text, from nothing."""
    tiny_pair.write_pairs(tmp_path / "pairs.tsv", 60, seed=1)
    (tmp_path / "text.txt").write_text("今天天气很好。\n我们去公园。\n\n" * 30, encoding="utf-8")
    paths = {"train_file": tmp_path / "pairs.tsv", "input_path": tmp_path / "text.txt"}
    return PipelineConfig(
        output_dir=str(tmp_path / "a model"), **{n: str(p) for n, p in paths.items()}, device="cpu"
    )


def test_from_text_and_pairs_all_steps_run_in_order(asked, config, tmp_path, capsys):
    pipeline(config)
    firsts = [" ".join(line.split(" --")[0].split()[:2]) for line in asked()]
    assert firsts[0] == "audit pairs" and firsts[1].startswith("audit text")
    assert firsts[2:5] == ["prepare pairs", "build text", "build vocab"]
    assert firsts[5:8] == ["prepare", "prepare", "new-model"]
    assert firsts[8:] == ["launch pretrain", "convert", "train-embedding", "train", "evaluate", "export"]
    pretrain, vectors, train, evaluate = asked()[8], *asked()[10:13]
    assert "--from_scratch=true --split=95,5,0 " in pretrain and "--warmup_rate=0.1 " in pretrain
    learned = f"--train_file={tmp_path}/a model/pairs/train.jsonl --dev_file={tmp_path}/a model/pairs/"
    assert f"--model_name_or_path={tmp_path}/a model/dynamic " in vectors and f"{learned}dev.jsonl" in vectors
    assert f"--model_name_or_path={tmp_path}/a model/vectors/model_last " in train
    assert f"{learned}dev.jsonl" in train and "--pooling=cosine" in train and "--pooling" not in vectors
    assert "--input_file=" + f"{tmp_path}/a model/pairs/test" in evaluate
    assert f"--calibrate_on={tmp_path}/a model/pairs/dev.jsonl --save_temperature=auto" in evaluate
    assert "--save_threshold=true --tune_for=accuracy" in evaluate
    said = capsys.readouterr()
    plan = [line.split()[0] for line in said.err.splitlines()[:7]]
    assert plan == ["pairs", "text", "model", "pretraining", "training", "memory", "output"]
    log = (tmp_path / "a model" / "pipeline.log").read_text()
    assert log.count("\n$ ernie-pair ") == len(asked())
    assert f"$ ernie-pair convert '--static_model_path={tmp_path}/a model/pretrain" in log
    lines = said.out.splitlines()
    assert len(said.err.splitlines()) + len(lines) <= 40
    assert f"serve     ernie-pair serve --model_path '{tmp_path}/a model/exported'" in lines
    told = "accuracy 0.7500 on 40 test pairs at threshold 0.4000; counting shared characters reaches 0.8000"
    assert lines[-1] == (
        f"result    it has learned nothing (it is not above counting): {told}; label more, or learn longer: "
        f"--minutes 240 --output_dir '{tmp_path}/a model.2'"
    )
    page = (tmp_path / "a model" / "report.html").read_text()
    assert "From text and pairs to a model" in page and "<span>launch</span> <span>pretrain</span>" in page


def test_a_second_pipeline_in_the_same_folder_is_refused(asked, config, tmp_path):
    with only_writer(tmp_path / "a model"), pytest.raises(MachineError, match="another run writes this"):
        pipeline(config)
    assert not (tmp_path / "asked").exists() and not any((tmp_path / "a model").iterdir())


@pytest.fixture
def given(tmp_path):
    return {
        f"{name}_file": str(tiny_pair.write_pairs(tmp_path / f"{name}.tsv", 20, seed))
        for seed, name in enumerate(("dev", "test"), start=2)
    }


def test_a_given_model_and_all_files_need_fewer_steps(asked, config, given, tmp_path, capsys):
    start = write_bert(tmp_path / "mine")
    pipeline(replace(config, input_path="", model_name_or_path=str(start), **given))
    assert [line.split()[0] for line in asked()] == [
        "audit", "train-embedding", "train", "evaluate", "export",
    ]  # fmt: skip
    train, _, evaluate = asked()[1:4]
    assert f"--model_name_or_path={start} " in train and f"--train_file={tmp_path}/pairs.tsv " in train
    assert f"--input_file={tmp_path}/test.tsv " in evaluate
    assert f"--calibrate_on={tmp_path}/dev.tsv" in evaluate
    assert "pretraining  none" in capsys.readouterr().err


def test_general_pairs_say_what_training_costs(asked, config, given, tmp_path, capsys):
    general = str(tiny_pair.write_pairs(tmp_path / "general.tsv", 20, seed=9))
    start = write_bert(tmp_path / "mine")
    config = replace(config, general_file=general)
    found = pipeline(replace(config, input_path="", model_name_or_path=str(start), **given))
    assert f"--input_file={general} --model_name_or_path={start}" in asked()[-1]
    assert "; general pairs: AUC fell" in found["result"] and found["metrics"]["general"] == {
        "line": "AUC fell"
    }
    assert "general pairs: AUC fell" in (tmp_path / "a model" / "report.html").read_text()
    assert f"general      {general}, before and after\n" in capsys.readouterr().err
    other = replace(config, output_dir=str(tmp_path / "other"))
    for flags, said in [
        ({"pretrain": False}, "general_file: the new model knows nothing before its training"),
        (
            {"general_file": config.train_file},
            "pairs.tsv:1: this pair is trained on, as are 60 of 60 of general",
        ),
        ({"are_scores": True}, "general_file is for two classes, and this is a model for regression"),
    ]:
        with pytest.raises(InputError, match=said):
            pipeline(replace(other, **flags))
        assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["dev_file", "test_file"])
def test_pairs_not_given_are_split_off_and_all_get_one_form(asked, config, given, tmp_path, name):
    """So that one set of column names holds for the files of an evaluation."""
    pipeline(replace(config, **{name: given[name]}))
    (split,) = (line for line in asked() if line.startswith("prepare pairs"))
    other = "test" if name == "dev_file" else "dev"
    assert f"--{name}={given[name]}" in split and f"--{other}_share=0.1" in split
    (evaluate,) = (line for line in asked() if line.startswith("evaluate"))
    for flag, file in (("input_file", "test"), ("calibrate_on", "dev")):
        assert f"--{flag}={tmp_path}/a model/pairs/{file}.jsonl" in evaluate


def test_pairs_that_choose_the_model_do_not_measure_it(asked, config, given):
    with pytest.raises(InputError, match="test_file .*dev.tsv holds the pairs that .* is chosen by; give"):
        inspect_inputs(replace(config, dev_file=given["dev_file"], test_file=given["dev_file"]))


def test_dev_pairs_of_one_class_choose_nothing(asked, config, given, tmp_path, capsys):
    """For `evaluate` refuses to choose on them."""
    ones = [row for row in (tmp_path / "dev.tsv").read_text("utf-8").splitlines(True) if row.endswith("1\n")]
    (tmp_path / "dev.tsv").write_text("".join(ones), encoding="utf-8")
    pipeline(replace(config, **given))
    (evaluate,) = (line for line in asked() if line.startswith("evaluate"))
    assert not any(f"--{flag}" in evaluate for flag in ("save_t", "tune_for", "calibrate_on"))
    rows = (tmp_path / "pairs.tsv").read_text("utf-8").splitlines(True)
    zeros = [row for row in rows if row.endswith("0\n")]
    (tmp_path / "dev.tsv").write_text("".join(zeros[:9]), encoding="utf-8")
    pipeline(replace(config, **given, output_dir=str(tmp_path / "zeros")))
    said = capsys.readouterr().err
    assert (
        f"all pairs of {given['dev_file']} have one label: no threshold could be chosen by them; it" in said
    )
    vectors, train = [line for line in asked() if line.startswith("train")][-2:]
    assert f"--dev_file={config.train_file} " in vectors and f"--dev_file={given['dev_file']} " in train


@pytest.mark.parametrize("rows, flags", [(400, {}), (60, {"label_map": "0=no,1=yes,2=so"})])
def test_of_many_pairs_or_no_two_classes_they_are_read_together(asked, config, tmp_path, rows, flags):
    tiny_pair.write_pairs(tmp_path / "pairs.tsv", rows, seed=1)
    pipeline(replace(config, **flags))
    (train,) = (line for line in asked() if line.startswith("train"))
    assert f"--model_name_or_path={tmp_path}/a model/dynamic " in train and "--pooling" not in train
    of_scores = replace(config, are_scores=True, output_dir=str(tmp_path / "scores"))
    assert not Plan(of_scores, inspect_inputs(of_scores)).reads_apart


def test_matches_of_one_text_train_no_vectors(asked, config, given, tmp_path):
    rows = [f"怎么办{n}\t怎么注销信用卡\t1\n" for n in range(20)] + [
        f"天{n}\t你好{n}\t0\n" for n in range(20)
    ]
    (tmp_path / "pairs.tsv").write_text("".join(rows), encoding="utf-8")
    pipeline(replace(config, **given))
    (train,) = (line for line in asked() if line.startswith("train"))
    assert f"--model_name_or_path={tmp_path}/a model/dynamic " in train and "--pooling=cosine" in train


def test_an_embedding_model_is_a_start_of_any_number_of_pairs(asked, config, tmp_path, capsys):
    tiny_pair.write_pairs(tmp_path / "pairs.tsv", 400, seed=1)
    config = replace(config, model_name_or_path=str(write_sentence(tmp_path / "vectors")))
    pipeline(config)
    vectors, train = (line for line in asked() if line.startswith("train"))
    assert f"--model_name_or_path={tmp_path}/vectors " in vectors and "--pooling=cosine" in train
    told = capsys.readouterr().err
    assert f"--input_path {config.input_path} is not used" in told and "pretraining  none" in told
    other = replace(config, output_dir=str(tmp_path / "other"))
    with pytest.raises(InputError, match="pretrain.*: .*vectors is an embedding model, which would forget"):
        pipeline(replace(other, pretrain=True))
    of_cls = write_sentence(tmp_path / "cls", pooling="cls")
    with pytest.raises(InputError, match="cls is an embedding model with prompts, a dense layer or another"):
        pipeline(replace(other, model_name_or_path=str(of_cls)))


def test_a_given_model_is_pretrained_on_a_given_text(asked, config, tmp_path):
    start = write_bert(tmp_path / "mine")
    pipeline(replace(config, model_name_or_path=str(start)))
    words = [line for line in asked() if line.startswith(("prepare --", "launch"))]
    assert f"--model_name={start} " in words[0] and f"--model_name_or_path={start} " in words[-1]
    assert "--from_scratch" not in words[-1] and not any(line.startswith("new-model") for line in asked())


def test_all_that_is_wrong_is_said_before_anything_is_written(asked, config, tmp_path):
    write_sentence(tmp_path / "vectors", pooling="cls")
    (tmp_path / "bad.tsv").write_text("one column\n", encoding="utf-8")
    wrong = {"train_file": "bad.tsv", "input_path": "absent", "model_name_or_path": "vectors"}
    paths = {name: str(tmp_path / path) for name, path in wrong.items()}
    with pytest.raises(InputError) as error:
        pipeline(replace(config, **paths, dev_file=str(tmp_path / "no.tsv")))
    said = error.value.message
    assert [line[:5] for line in said.splitlines()] == ["4 thi", *(f"  ({n})" for n in (1, 2, 3, 4))]
    assert all(part in said for part in ("bad.tsv:1", "no.tsv", "absent", "is an embedding model"))
    assert not (tmp_path / "a model").exists() and not (tmp_path / "asked").exists()


def test_pairs_of_one_class_or_very_few_are_refused(config, tmp_path):
    rows = (tmp_path / "pairs.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "few.tsv").write_text("".join(rows[:9]), encoding="utf-8")
    with pytest.raises(InputError, match="few.tsv: . pairs are too few to learn from; give at least 20"):
        inspect_inputs(replace(config, train_file=str(tmp_path / "few.tsv")))
    ones = [row for row in rows if row.endswith("\t1\n")] * 3
    (tmp_path / "ones.tsv").write_text("".join(ones), encoding="utf-8")
    with pytest.raises(InputError, match="ones.tsv: all pairs have the label 1; a classifier needs pairs of"):
        inspect_inputs(replace(config, train_file=str(tmp_path / "ones.tsv")))


@pytest.mark.parametrize("documents, split", [(40, "95,5,0"), (5, "4,1,0"), (2, "1,0,0")])
def test_the_split_fits_small_corpora(asked, config, documents, split):
    asked.put(documents)
    pipeline(config)
    assert f"--split={split} " in asked()[8]


def test_a_restart_keeps_the_measured_speed_and_times(asked, config, tmp_path, monkeypatch):
    pipeline(config)
    record = json.loads((tmp_path / "a model" / "pipeline.json").read_text())
    assert record["settings"]["flops"] > 0 and "convert to a dynamic model" in record["settings"]["seconds"]
    record["settings"]["seconds"]["evaluate"] = 3605.0
    (tmp_path / "a model" / "pipeline.json").write_text(json.dumps(record))
    monkeypatch.setattr(pipeline_inputs, "measure_flops", lambda: 1.0)  # another machine, or a busy one
    first = asked()
    (tmp_path / "a model" / "report.html").unlink()
    pipeline(config)
    assert asked() == first * 2
    assert "1:00:05" in (tmp_path / "a model" / "report.html").read_text()


def test_pairs_and_questions_are_a_classifier_and_a_search(asked, config, tmp_path):
    rows = "".join(f"怎么办{n},答案{n}\n怎么做{n},答案{n}\n" for n in range(80))
    (tmp_path / "faq.csv").write_text(f"问题,答案\n{rows}", encoding="utf-8")
    stage = {"hit@1": 0.5, "hit@10": 0.9, "mrr": 0.6, "milliseconds": 1, "gain": [0, 0, 0]}
    stage["intervals"] = {name: [0.4, 1] for name in ("hit@1", "hit@10", "mrr")}
    stages = json.dumps({"questions": 40, "stages": {"bm25": stage, "both": stage}})
    (tmp_path / "search.json").write_text(stages)
    made = pipeline(replace(config, faq_file=str(tmp_path / "faq.csv")))
    firsts = [" ".join(line.split(" --")[0].split()[:2]) for line in asked()]
    assert firsts[-8:] == [
        "train", "evaluate", "export", "train-embedding", "index", *["evaluate search"] * 2, "index",
    ]  # fmt: skip
    assert all("--model_path=" in line for line in asked() if line.startswith("evaluate search"))
    assert "accuracy 0.7500" in made["result"] and "BM25 alone is served" in made["result"]
    assert made["model"].name == "exported" and made["index"].name == "faq.index"


def test_a_pipeline_that_is_done_says_so(asked, config, tmp_path, capsys):
    pipeline(config)
    (tmp_path / "a model" / "exported").mkdir(exist_ok=True)
    first, said = asked(), capsys.readouterr().out
    pipeline(config)
    again = capsys.readouterr()
    kept = [line for line in said.splitlines() if line.startswith(("report ", "serve ", "result "))]
    assert asked() == first and again.out.splitlines() == kept and len(kept) == 3
    assert again.err.splitlines()[-1].endswith("made from the same inputs and flags: nothing to do")
    tiny_pair.write_pairs(tmp_path / "pairs.tsv", 62, seed=2)
    (tmp_path / "a model" / "dynamic").rmdir()
    write_trained(tmp_path / "a model" / "dynamic")
    pipeline(replace(config, dry_run=True))
    told = capsys.readouterr().err
    assert f"{tmp_path}/a model/v2, after {tmp_path}/a model" in told and "pretraining  none" in told
    write_trained(tmp_path / "other")
    pipeline(replace(config, dry_run=True, model_name_or_path=str(tmp_path / "other")))
    assert f"model        {tmp_path}/other: 1 layers" in capsys.readouterr().err
    (tmp_path / "text.txt").write_text("今天天气很好。\n我们去公园。\n\n" * 40, encoding="utf-8")
    pipeline(replace(config, dry_run=True))
    assert "pretraining  none" not in capsys.readouterr().err and asked() == first


def test_a_dry_run_and_a_fresh_start(asked, config, tmp_path, capsys):
    folder = tmp_path / "a model"
    pipeline(replace(config, dry_run=True))
    assert "about " in capsys.readouterr().err and not folder.exists() and not (tmp_path / "asked").exists()
    pipeline(config)
    (folder / "mine.txt").write_text("mine")
    pipeline(replace(config, fresh_start=True, minutes=5))
    (aside,) = tmp_path.glob("a model.*")
    assert (aside / "mine.txt").read_text() == "mine" and not (folder / "mine.txt").exists()
    assert len(asked()) % 2 == 0 and f"the earlier pipeline is now in {aside}" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds files that no pipeline made"):
        pipeline(replace(config, fresh_start=True, output_dir=str(tmp_path / "other")))


def test_a_report_of_the_user_stays(asked, config, tmp_path):
    (tmp_path / "a model").mkdir()
    (tmp_path / "a model" / "report.html").write_text("mine")
    with pytest.raises(InputError, match="report.html exists; "):
        pipeline(config)
    assert (tmp_path / "a model" / "report.html").read_text() == "mine" and not (tmp_path / "asked").exists()


def test_more_text_and_time_give_a_larger_model_more_steps(config):
    facts = inspect_inputs(config)
    fast = replace(facts, flops=1e15, characters_of_pairs=20_000_000)
    assert Plan(config, facts).size.hidden_size == 192
    assert Plan(config, fast).size.hidden_size == 312
    assert Plan(replace(config, minutes=1e-6), fast).size.hidden_size == 192
    slow = Plan(config, replace(facts, flops=1e9))
    assert slow.count_steps(10**9) == MIN_STEPS < Plan(config, fast).count_steps(10**9)
    assert "those of the CPU" in Plan(replace(config, device="gpu"), facts).lines()[-1]
    assert "those of the CPU" not in Plan(config, facts).lines()[-1]
    for wanted, rows, rate in ((True, 3000, 1e-4), (True, 30_000, 3e-4), (False, 3000, 3e-4)):
        plan = Plan(replace(config, pretrain=wanted), replace(facts, rows={"train": rows}))
        assert plan.rate_on_pairs() == rate
    a_pass = Plan(config, fast).count_steps(50_000_000)
    assert a_pass == pytest.approx(2 * Plan(config, fast).count_steps(25_000_000), rel=0.1)


def test_the_text_is_measured_by_documents_of_both_kinds(tmp_path):
    (tmp_path / "a.txt").write_text("一\n二\n\n\n三\n", encoding="utf-8")
    lines = [json.dumps({"text": "四五六"}, ensure_ascii=False) for _ in range(3)]
    (tmp_path / "b.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = measure_text(f"{tmp_path}/a.txt,{tmp_path}/b.jsonl")
    assert (text.files, text.documents, text.is_whole) == (2, 5, True)
    with pytest.raises(InputError, match="no such file or folder"):
        measure_text(f"{tmp_path}/a.txt,{tmp_path}/c.txt")


def test_scores_are_a_regression_without_an_audit(asked, config, tmp_path):
    rows = [f"这是{number}\t那是{number}\t{number / 7:.3f}\n" for number in range(60)]
    (tmp_path / "scores.tsv").write_text("".join(rows), encoding="utf-8")
    facts = inspect_inputs(replace(config, train_file=str(tmp_path / "scores.tsv"), are_scores=True))
    assert facts.balance == "scores from 0 to 8.429"
    work = Plan(replace(config, train_file=str(tmp_path / "scores.tsv"), are_scores=True), facts)
    commands = [" ".join(words) for make in work.steps()[:2] for words in make().commands]
    assert not any(words.startswith("audit pairs") for words in commands)
    assert "--are_scores=true" in commands[-1]
    assert np.isfinite(facts.mean_length)


def test_what_the_user_has_there_or_changed_stays(asked, config, tmp_path):
    folder = tmp_path / "a model"
    folder.mkdir()
    (folder / "pipeline.json").write_text('{"mine": 1}')
    with pytest.raises(InputError, match="pipeline.json is not of a pipeline; choose another out"):
        pipeline(config)
    assert (folder / "pipeline.json").read_text() == '{"mine": 1}' and not (tmp_path / "asked").exists()
    (folder / "pipeline.json").unlink()
    pipeline(config)
    (folder / "report.html").write_text("mine now")
    with pytest.raises(InputError, match="it was changed since it was made"):
        pipeline(config)
    assert (folder / "report.html").read_text() == "mine now"


def test_a_folder_with_files_of_the_user_is_refused(asked, config, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("今天天气很好。\n\n" * 30, encoding="utf-8")
    config = replace(config, input_path=str(texts))
    for place, reason in (
        ("texts", r"texts holds files that no pipeline made \(a.txt\); choose a new or an empty folder"),
        ("texts/new", "texts/new is in the input .*texts; choose another folder"),
    ):
        with pytest.raises(InputError, match=f"output_dir .*{reason}"):
            pipeline(replace(config, output_dir=str(tmp_path / place)))
    (texts / ".hidden").touch()
    assert sorted(path.name for path in texts.iterdir()) == [".hidden", "a.txt"]
    pipeline(config)
    moved = (tmp_path / "pairs.tsv").rename(tmp_path / "a model" / "mine.tsv")
    with pytest.raises(InputError, match="a model holds the input .*mine.tsv; choose another folder"):
        pipeline(replace(config, train_file=str(moved)))


def test_other_flags_are_refused_before_the_first_step(asked, config, tmp_path):
    pipeline(config)
    first = asked()
    (tmp_path / "other.tsv").write_bytes((tmp_path / "pairs.tsv").read_bytes())
    for name, value, shown in (
        ("epochs", 5, "epochs=5: .*a model was begun with epochs=0; choose another output_dir, or go on as"),
        ("minutes", 5.0, "minutes=5.0: .* was begun with minutes=60"),
        ("label_map", "0=a,1=b", "label_map='0=a,1=b': .* was begun with label_map=''"),
        ("train_file", str(tmp_path / "other.tsv"), "train_file .*other.tsv: .*train_file .*pairs.tsv;"),
        ("are_scores", True, "are_scores=True: .* with are_scores=False"),
    ):
        with pytest.raises(InputError, match=shown):
            pipeline(replace(config, **{name: value}))
    assert asked() == first
    record = json.loads((tmp_path / "a model" / "pipeline.json").read_text())
    del record["settings"]["seconds"]["train on the pairs"]  # as if it had been stopped before that
    (tmp_path / "a model" / "pipeline.json").write_text(json.dumps(record))
    (tmp_path / "pairs.tsv").rename(tmp_path / "moved.tsv")
    pipeline(replace(config, epochs=5, train_file=str(tmp_path / "moved.tsv")))
    assert any("--epochs=5 " in line for line in asked()[len(first) :])


def test_one_error_alone_keeps_its_kind(config, tmp_path, monkeypatch):
    def open_damaged(name, model_type):
        raise CheckpointError(f"{name} is damaged")

    monkeypatch.setattr(pipeline_inputs, "open_model", open_damaged)
    with pytest.raises(CheckpointError, match="mine is damaged"):
        inspect_inputs(replace(config, model_name_or_path=str(tmp_path / "mine")))


def test_the_rules_of_rows_reach_the_text_of_the_pairs(asked, config, given):
    pipeline(replace(config, **given, on_bad_row="skip"))
    (text,) = (line for line in asked() if line.startswith("build text"))
    assert "--on_bad_row=skip " in text


@pytest.mark.parametrize("rows, given, epochs", [(60, 0, 20), (1000, 0, 16), (20_000, 0, 3), (60, 2, 2)])
def test_few_pairs_are_read_more_often(config, rows, given, epochs):
    config = replace(config, epochs=given)
    inputs = replace(inspect_inputs(config), rows={"train": rows})
    assert Plan(config, inputs).epochs == epochs
