"""Every flag of every command, given an invalid value: one line that names the flag, and exit code 2."""

import math
import os
import re
import subprocess
from dataclasses import MISSING, fields
from typing import List, get_type_hints

import pytest
from command_configs import CONFIGS
from places import ROOT

from data_tools.audit_text import AuditConfig
from data_tools.build_vocab import VocabConfig
from data_tools.create_pretraining_data import CreateConfig
from data_tools.make_sample import SampleConfig
from data_tools.trans_to_json import TransConfig
from ernie_pair.checks.pipeline_inputs import PipelineConfig
from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.pairs.config.ask_config import PredictConfig
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.retrieval.build_index import IndexConfig
from ernie_pair.service.serve import ServeConfig


def needed(config_class):
    words = ["--vocab_file", "x"] if issubclass(config_class, CreateConfig) else []
    words += ["--input_path", "x"] if config_class is VocabConfig else []
    words += ["--embedding_model", "x", "--input_file", "y"] if config_class is IndexConfig else []
    words += ["--model_path", "x"] if config_class is ServeConfig else []
    words += ["--train_file", "x"] if config_class is PipelineConfig else []
    for item in fields(config_class):
        if item.default is MISSING:
            word = __file__ if item.name == "train_config" else "x"  # a file that must exist
            is_list = get_type_hints(config_class)[item.name] == List[str]  # two, since one is too few
            given = [word, word] if is_list else [word]
            words += given if item.metadata["positional"] else [f"--{item.name}", word]
    return words


def parse(config_class, *words):
    return parse_config(config_class, [*needed(config_class), *words])


def flags_of(*kinds):
    """(config, flag) for each flag of these types that is not required."""
    found = [
        pytest.param(config_class, item.name, id=f"{config_class.__name__}-{item.name}")
        for config_class in CONFIGS
        for item in fields(config_class)
        if get_type_hints(config_class)[item.name] in kinds and item.default is not MISSING
    ]
    assert len(found) > 10
    return found


@pytest.mark.parametrize(("config_class", "flag"), flags_of(bool))
def test_a_bool_flag_parses_false_and_refuses_non_booleans(config_class, flag):
    for word in ("False", "false"):
        assert getattr(parse(config_class, f"--{flag}", word), flag) is False
    for word in ("Flase", "2", "none", "''"):
        with pytest.raises(
            InputError, match=f"^{flag} takes true or false, not {re.escape(repr(word))}; correct it$"
        ):
            parse(config_class, f"--{flag}", word)


@pytest.mark.parametrize(("config_class", "flag"), flags_of(int))
def test_an_int_flag_takes_a_whole_number_of_0_or_more(config_class, flag):
    for word in ("text", "1.5", "1e3", "nan", "''", "ten"):
        with pytest.raises(InputError, match=f"^{flag} takes a whole number, not "):
            parse(config_class, f"--{flag}", word)
    with pytest.raises(InputError, match=flag):
        parse(config_class, f"--{flag}=-1")


@pytest.mark.parametrize(("config_class", "flag"), flags_of(float))
def test_a_float_flag_takes_only_finite_numbers(config_class, flag, tmp_path):
    for word in ("text", "nan", "inf", "-inf", "''"):
        with pytest.raises(InputError, match=f"^{flag} takes a number, not "):
            parse(config_class, f"--{flag}={word}")
    for word in (".nan", ".inf", "-.inf"):  # a YAML file can say them
        path = tmp_path / "flags.yaml"
        path.write_text(f"{flag}: {word}\n")
        with pytest.raises(InputError, match=flag):
            parse(config_class, "--config", str(path))


UNWORKABLE = """min_lr 2e-4, max_lr 0, max_lr -1e-4, min_lr -1e-9, warmup_rate -0.1, warmup_rate 1.1,
warmup_rate 1, max_steps 0, save_steps 0, checkpoint_steps 0, eval_freq 0, eval_iters 0, logging_freq 0,
micro_batch_size 0, dp_degree 0, max_seq_len 7, masked_lm_prob 0, masked_lm_prob 1.5, masked_lm_prob -0.1,
short_seq_prob -1, short_seq_prob 2, hidden_dropout_prob 1, attention_probs_dropout_prob 1,
attention_probs_dropout_prob -0.5, adam_beta1 1, adam_epsilon 0, weight_decay -1, grad_clip -1, max_ngrams 0,
seed 9223372036854775808"""


UNWORKABLE_OF = {
    PretrainConfig: UNWORKABLE.replace("\n", " "),
    AuditConfig: "near_threshold 0.2, near_threshold 1.1, near_limit -1, workers 0",
    TransConfig: "workers 0, min_doc_length -1, seed -1",
    VocabConfig: "vocab_size 5, min_count 0, workers 0",
    CreateConfig: "max_sentence_length 0, workers 0, log_interval -1, max_bad_lines -1",
    SampleConfig: "seed -1, documents 0, documents 1000000000, pairs 16",
}


@pytest.mark.parametrize("config_class, words", [
    pytest.param(config_class, words, id=f"{config_class.__name__}-{words}")
    for config_class, table in UNWORKABLE_OF.items()
    for words in table.split(", ")
])  # fmt: skip
def test_unworkable_numbers_are_refused(config_class, words):
    flag, value = words.split()
    with pytest.raises(InputError, match=rf"^{flag}=\S+ is [^\n]*\Z"):
        parse(config_class, f"--{flag}", value)


def test_decay_steps_default_to_max_steps_and_exceed_warm_up():
    for rate in (0, 0.1, 0.999):
        config = parse(PretrainConfig, "--max_steps", "1000", "--warmup_rate", str(rate))
        assert config.lr_decay_steps == 1000 and config.num_warmup_steps == round(1000 * rate) < 1000


@pytest.mark.parametrize(("words", "message"), [
    ("--max_step 3", r"did you mean max_steps\? help lists the flags$"),
    ("--max-stesp 3", r"did you mean max_steps\?"),
    ("--xyzzy 3", "unrecognized arguments: xyzzy=3; help lists the flags$"),
    ("--max_steps", "^max_steps has no value; it takes a whole number$"),
    ("--config", "^config has no value; it takes a YAML file$"),
    ("--config none.yaml", "^config none.yaml: cannot be read"),
])  # fmt: skip
def test_unknown_flags_and_missing_values_are_reported(words, message):
    with pytest.raises(InputError, match=message):
        parse(PretrainConfig, *words.split())


def test_repeating_a_flag_with_the_same_value_is_silent(capsys):
    assert parse(PretrainConfig, "--max_steps", "3", "--max-steps=3").max_steps == 3
    assert capsys.readouterr().err == ""


HARMLESS = {  # flags, one of which nearly every command has, and two values for each
    **dict.fromkeys(("overwrite", "fresh_start", "remove"), ("false", "true")),
    "device": ("gpu", "cpu"),
    "port": ("1", "2"),
    "output_dir": ("a", "b"),
    "save_format": ("hf", "both"),
}


def overridable():
    """(config, flag, two values of it) for every command that has optional flags."""
    for config_class in CONFIGS:
        optional = [item.name for item in fields(config_class) if item.default is not MISSING]
        flag = next((name for name in HARMLESS if name in optional), None)
        assert flag or not optional, f"name a flag of {config_class.__name__} in HARMLESS"
        if flag:
            yield pytest.param(config_class, flag, HARMLESS[flag], id=config_class.__name__)


@pytest.mark.parametrize(("config_class", "flag", "values"), overridable())
def test_the_last_value_of_a_flag_counts_and_overrides_yaml(config_class, flag, values, capsys, tmp_path):
    first, last = values
    found = parse(config_class, f"--{flag}", first, f"--{flag.replace('_', '-')}={last}")
    assert str(getattr(found, flag)).lower() == last
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"--{flag} is given as {first} and as {last}: the last one counts"
    (tmp_path / "preset.yaml").write_text(f"{flag}: {first}\n")
    found = parse(config_class, "--config", str(tmp_path / "preset.yaml"), f"--{flag}", last)
    assert str(getattr(found, flag)).lower() == last and capsys.readouterr().err == ""


def test_a_number_of_too_many_digits_is_reported():
    with pytest.raises(InputError, match="^max_steps takes a whole number, not .999"):
        parse(PretrainConfig, "--max_steps", "9" * 5000)


def test_all_missing_flags_are_reported_at_once(tmp_path):
    with pytest.raises(InputError) as caught:
        parse_config(PretrainConfig, [])
    expected = "model_name_or_path, input_dir and output_dir are missing; help says what they mean"
    assert str(caught.value) == expected
    path = tmp_path / "flags.yaml"
    path.write_text("input_dir: x\n")
    with pytest.raises(InputError, match="^model_name_or_path and output_dir are missing"):
        parse_config(PretrainConfig, ["--config", str(path)])
    with pytest.raises(InputError, match="^output_dir is missing"):
        parse_config(PretrainConfig, ["--config", str(path), "--model_name_or_path", "x"])


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "large"])
def test_a_flags_file_must_be_a_regular_file_of_limited_size(tmp_path, kind):
    path = tmp_path / "flags.yaml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"# \n" * (1 << 20))
    with pytest.raises(InputError, match=r"^config .*(regular file|above 262144 bytes); give a YAML file$"):
        parse(PretrainConfig, "--config", str(path))


BAD_FILES = {
    "5,000 digits": ("max_steps: " + "9" * 5000 + "\n", ":1: max_steps takes a whole number, not"),
    "lists that share lists": (
        "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi")),
        ":1: a is not a flag",
    ),
    "an unknown flag": ("seed: 1\nmax_step: 3\n", r":2: max_step is not a flag; did you mean max_steps\?"),
    "a flag twice": ("max_steps: 3\nseed: 1\nmax_steps: 4\n", ":3: max_steps is already set in line 1"),
    "no value": ("max_steps:\n", ":1: max_steps has no single value"),
    "a list": ("max_steps: [1, 2]\n", ":1: max_steps has no single value"),
    "another file": ("config: other.yaml\n", ":1: config is not a flag"),
    "no mapping": ("- 1\n- 2\n", ":1: not a list of flags"),
    "a bracket left open": ("seed: 1\nsplit: [\n", ":3: not YAML"),
    "control characters": ("\0", ": not YAML text"),
    "another encoding": ("种子: 1\n".encode("gb18030"), ": not YAML text"),
    "nested too deep": ("[" * 100_000, ": not YAML text"),
    "a python object": ("seed: !!python/object/apply:os.getpid []\n", ":1: seed has no single value"),
    "a wrong value": ("seed: 1\nmax_steps: many\n", ":2: max_steps takes a whole number, not 'many'"),
    "bytes": ("split: !!binary 949\n", ":1: split has no single value"),
    "a tag": ("split: !!python/name:os.system ''\n", ":1: split has no single value"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_flags_file_is_refused_with_its_line_number(tmp_path, content, message):
    path = tmp_path / "flags.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message) as caught:
        parse(PretrainConfig, "--config", str(path))
    assert len(str(caught.value)) < 300 + len(str(path)) and "\n" not in str(caught.value)


def test_values_mean_the_same_in_a_file_and_as_flags(tmp_path):
    """Plain YAML would read 007 as a number, and 1e-3 as text."""
    values = {
        "output_dir": "007",
        "max_lr": "1e-3",
        "max_steps": "1_000",
        "use_amp": "yes",
        "use_sharding": "",
    }
    values.update(amp_dtype="float32", masking_fn="none", use_sharding="none")
    path = tmp_path / "flags.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in values.items()))
    required = ["--model_name_or_path", "x", "--input_dir", "x"]
    by_file = parse_config(PretrainConfig, [*required, "--config", str(path)])
    assert by_file == parse_config(PretrainConfig, [*required, *(f"--{n}={v}" for n, v in values.items())])
    assert (by_file.output_dir, by_file.max_lr, by_file.max_steps) == ("007", 1e-3, 1000)
    assert by_file.use_amp and by_file.use_sharding is None


def test_an_empty_flags_file_changes_nothing(tmp_path):
    path = tmp_path / "flags.yaml"
    path.write_text("# nothing\n")
    assert parse(PretrainConfig, "--config", str(path)) == parse(PretrainConfig)


def launched(folder, *words, **environment):
    """The arguments that scripts/run_pretrain_static.sh passes to Python."""
    (folder / "environment.sh").write_text(
        "ROOT=/root\nDEVICE=cpu\nPY=show\nshow() { printf '%s\\n' \"$@\"; }\nfail() { exit 2; }\n"
    )
    script = (ROOT / "scripts" / "run_pretrain_static.sh").read_text().replace('exec "$PY"', '"$PY"')
    (folder / "run.sh").write_text(script)
    done = subprocess.run(
        ["sh", str(folder / "run.sh"), *words],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("run_pretrain_static.py\n")[1].splitlines()


def test_user_flags_override_those_of_the_script(tmp_path):
    data = {"DATA": "5.0 data/a 7.0 'my data/b'"}
    recipe = parse_config(PretrainConfig, launched(tmp_path, **data))
    assert recipe.input_dir == data["DATA"] and recipe.max_steps == 200_000
    mine = launched(tmp_path, "--max_steps", "7", "--seed=3", "--split=1,0,0", **data)
    config = parse_config(PretrainConfig, mine)
    assert (config.max_steps, config.seed, config.split) == (7, 3, "1,0,0")


def test_a_value_may_begin_with_a_dash():
    assert parse_config(TransConfig, ["--input_path=-x.txt", "--output_path=--y"]).input_path == "-x.txt"


def test_default_numbers_are_finite():
    for config_class in CONFIGS:
        for item in fields(config_class):
            if isinstance(item.default, float):
                assert math.isfinite(item.default)


OUTPUTS = [
    pytest.param(config_class, item.name, id=f"{config_class.__name__}-{item.name}")
    for config_class in CONFIGS
    for item in fields(config_class)
    if item.name in ("output_dir", "output_file", "output_path", "output_prefix")
    and item.default != ""
    and config_class.__name__ != "DoctorConfig"  # which writes nothing
]


def with_place(config_class, flag, place):
    words = needed(config_class)
    if f"--{flag}" in words:
        start = words.index(f"--{flag}")
        del words[start : start + 2]
    return [*words, f"--{flag}={place}"]


@pytest.mark.parametrize("nothing", ["", " "])
@pytest.mark.parametrize("config_class, flag", OUTPUTS)
def test_an_empty_output_path_is_refused(config_class, flag, nothing):
    with pytest.raises(InputError, match=f"^{flag} is empty; name"):
        parse_config(config_class, with_place(config_class, flag, nothing))


@pytest.mark.parametrize("config_class, words", [
    (TransConfig, ["--json_key", "\udcff"]),
    (TransConfig, ["--doc_spliter", "a\udcff"]),
    (PredictConfig, ["--pair", "甲", "\udcff"]),
])  # fmt: skip
def test_a_text_that_is_not_utf8_is_refused(config_class, words):
    given = [] if config_class is PredictConfig else needed(config_class)
    with pytest.raises(InputError, match=rf"^{words[0][2:]} is not UTF-8 \(it contains \\udcff\); give it"):
        parse_config(config_class, [*given, *(["--model_path", "x"] if not given else []), *words])


@pytest.mark.parametrize("place", ["data/", "data/.", ".."])
@pytest.mark.parametrize(
    "config_class, flag", [(CreateConfig, "output_prefix"), (TransConfig, "output_path")]
)
def test_an_output_whose_name_is_missing_is_refused(config_class, flag, place):
    with pytest.raises(InputError, match=f"^{flag} {re.escape(place)} has no name after the last /, "):
        parse_config(config_class, with_place(config_class, flag, place))


@pytest.mark.parametrize("config_class", [one.values[0] for one in OUTPUTS if one.values[1] == "output_dir"])
def test_an_output_dir_that_is_a_file_is_refused(config_class):
    with pytest.raises(InputError, match=f"^output_dir {re.escape(__file__)} is a file; give a folder$"):
        parse_config(config_class, with_place(config_class, "output_dir", __file__))
