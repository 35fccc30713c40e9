"""Every flag of every command, given what it does not take: one line that names it, and exit code 2."""

import math
import os
import re
import subprocess
from dataclasses import MISSING, fields
from typing import List, get_type_hints

import pytest
from command_configs import CONFIGS
from places import ROOT

from data_tools.base.cli import exit_code_of, parse_config
from data_tools.base.errors import InputError
from data_tools.build_vocab import VocabConfig
from data_tools.create_pretraining_data import CreateConfig
from data_tools.trans_to_json import TransConfig
from ernie_pair.pretrain.config.pretrain_config import PretrainConfig
from ernie_pair.search.build_index import IndexConfig


def needed(config_class):
    """The words without which nothing is parsed."""
    words = ["--vocab_file", "x"] if issubclass(config_class, CreateConfig) else []
    words += ["--input_path", "x"] if config_class is VocabConfig else []
    words += ["--model_path", "x"] if config_class is IndexConfig else []
    for item in fields(config_class):
        if item.default is MISSING:
            word = __file__ if item.name == "train_config" else "x"  # which has to be there
            is_list = get_type_hints(config_class)[item.name] == List[str]  # of two where one is too few
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
def test_false_is_false_and_a_misspelt_one_is_refused(config_class, flag):
    for word in ("False", "false"):
        assert getattr(parse(config_class, f"--{flag}", word), flag) is False
    for word in ("Flase", "2", "none", "''"):
        with pytest.raises(
            InputError, match=f"^{flag} takes true or false, not {re.escape(repr(word))}; correct it$"
        ):
            parse(config_class, f"--{flag}", word)


@pytest.mark.parametrize(("config_class", "flag"), flags_of(int))
def test_a_count_is_a_whole_number_of_0_or_more(config_class, flag):
    for word in ("text", "1.5", "1e3", "nan", "''", "ten"):
        with pytest.raises(InputError, match=f"^{flag} takes a whole number, not "):
            parse(config_class, f"--{flag}", word)
    with pytest.raises(InputError, match=flag):
        parse(config_class, f"--{flag}=-1")


@pytest.mark.parametrize(("config_class", "flag"), flags_of(float))
def test_a_number_is_finite(config_class, flag, tmp_path):
    for word in ("text", "nan", "inf", "-inf", "''"):
        with pytest.raises(InputError, match=f"^{flag} takes a number, not "):
            parse(config_class, f"--{flag}={word}")
    for word in (".nan", ".inf", "-.inf"):  # a YAML file can say them
        path = tmp_path / "flags.yaml"
        path.write_text(f"{flag}: {word}\n")
        with pytest.raises(InputError, match=flag):
            parse(config_class, "--config", str(path))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--min_lr 2e-4", "min_lr=0.0002 is above max_lr=0.0001"),
        ("--max_lr 0", "max_lr=0.0"),
        ("--max_lr=-1e-4", "max_lr=-0.0001"),
        ("--min_lr=-1e-9", "min_lr=-1e-09"),
        ("--warmup_rate=-0.1", "warmup_rate=-0.1"),
        ("--warmup_rate 1.1", "warmup_rate=1.1"),
        ("--warmup_rate 1", "warmup_rate=1.0"),
        ("--max_steps 0", "max_steps=0"),
        ("--save_steps 0", "save_steps=0"),
        ("--checkpoint_steps 0", "checkpoint_steps=0"),
        ("--eval_freq 0", "eval_freq=0"),
        ("--eval_iters 0", "eval_iters=0"),
        ("--logging_freq 0", "logging_freq=0"),
        ("--micro_batch_size 0", "micro_batch_size=0"),
        ("--dp_degree 0", "dp_degree=0"),
        ("--max_seq_len 7", "max_seq_len=7"),
        ("--masked_lm_prob 0", "masked_lm_prob=0.0"),
        ("--masked_lm_prob 1.5", "masked_lm_prob=1.5"),
        ("--masked_lm_prob=-0.1", "masked_lm_prob=-0.1"),
        ("--short_seq_prob=-1", "short_seq_prob=-1.0"),
        ("--short_seq_prob 2", "short_seq_prob=2.0"),
        ("--hidden_dropout_prob 1", "hidden_dropout_prob=1.0"),
        ("--attention_probs_dropout_prob 1", "attention_probs_dropout_prob=1.0"),
        ("--attention_probs_dropout_prob=-0.5", "attention_probs_dropout_prob=-0.5"),
        ("--adam_beta1 1", "adam_beta1=1.0"),
        ("--adam_epsilon 0", "adam_epsilon=0.0"),
        ("--weight_decay=-1", "weight_decay=-1.0"),
        ("--grad_clip=-1", "grad_clip=-1.0"),
        ("--max_ngrams 0", "max_ngrams=0"),
        ("--seed 9223372036854775808", "seed=9223372036854775808"),
    ],
)
def test_a_pretraining_that_could_not_work_is_not_started(words, named):
    with pytest.raises(InputError, match=named) as caught:
        parse(PretrainConfig, *words.split())
    assert len(str(caught.value).splitlines()) == 1


def test_zero_decay_steps_mean_all_and_warm_up_ends_earlier():
    for rate in (0, 0.1, 0.999):
        config = parse(PretrainConfig, "--max_steps", "1000", "--warmup_rate", str(rate))
        assert config.lr_decay_steps == 1000 and config.num_warmup_steps == round(1000 * rate) < 1000


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**40, 2**63 - 1])
def test_any_seed_of_64_bits_is_a_seed(seed):
    assert parse(PretrainConfig, "--seed", str(seed)).seed == seed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max_step 3", r"did you mean max_steps\? help lists the flags$"),
        ("--max-stesp 3", r"did you mean max_steps\?"),
        ("--xyzzy 3", "unrecognized arguments: xyzzy=3; help lists the flags$"),
        ("--max_steps", "^max_steps has no value; it takes a whole number$"),
        ("--config", "^config has no value; it takes a YAML file$"),
        ("--config none.yaml", "^config none.yaml: cannot be read"),
    ],
)
def test_a_flag_that_is_not_there_or_not_clear_is_named(words, message):
    with pytest.raises(InputError, match=message):
        parse(PretrainConfig, *words.split())


def test_a_flag_may_be_repeated_with_its_value(capsys):
    words = "--max_steps 3 --max-steps=3 --seed -1".split()[:-2]
    assert parse(PretrainConfig, *words).max_steps == 3
    assert capsys.readouterr().err == ""


HARMLESS = {  # flags, one of which nearly every command has, and two values for each
    **dict.fromkeys(("overwrite", "fresh_start", "remove"), ("false", "true")),
    **{"device": ("gpu", "cpu"), "port": ("1", "2"), "most_lines": ("1", "2"), "output_dir": ("a", "b")},
    "save_format": ("hf", "both"),
}


def overridable():
    """(config, flag, two values of it) of every command that has more than what it needs."""
    for config_class in CONFIGS:
        optional = [item.name for item in fields(config_class) if item.default is not MISSING]
        flag = next((name for name in HARMLESS if name in optional), None)
        assert flag or not optional, f"name a flag of {config_class.__name__} in HARMLESS"
        if flag:
            yield pytest.param(config_class, flag, HARMLESS[flag], id=config_class.__name__)


@pytest.mark.parametrize(("config_class", "flag", "values"), overridable())
def test_a_later_flag_overrides_a_preset_one(config_class, flag, values, capsys, tmp_path):
    first, last = values
    found = parse(config_class, f"--{flag}", first, f"--{flag.replace('_', '-')}={last}")
    assert str(getattr(found, flag)).lower() == last
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == f"--{flag} is given as {first} and as {last}: the last one counts"
    (tmp_path / "preset.yaml").write_text(f"{flag}: {first}\n")
    found = parse(config_class, "--config", str(tmp_path / "preset.yaml"), f"--{flag}", last)
    assert str(getattr(found, flag)).lower() == last and capsys.readouterr().err == ""


def test_each_missing_flag_is_named():
    for missing in ("model_name_or_path", "input_dir", "output_dir"):
        words = needed(PretrainConfig)
        place = words.index(f"--{missing}")
        with pytest.raises(InputError, match=f"^{missing} is missing"):
            parse_config(PretrainConfig, words[:place] + words[place + 2 :])


def test_a_number_that_python_does_not_read_is_named():
    with pytest.raises(InputError, match="^max_steps has a value of 5000 characters, above 4096; shorten it"):
        parse(PretrainConfig, "--max_steps", "9" * 5000)


def test_all_missing_flags_are_named_at_once(tmp_path):
    with pytest.raises(InputError) as caught:
        parse_config(PretrainConfig, [])
    expected = "model_name_or_path, input_dir and output_dir are missing; help says what they mean"
    assert str(caught.value) == expected
    path = tmp_path / "flags.yaml"
    path.write_text("input_dir: x\n")
    with pytest.raises(InputError, match="^model_name_or_path and output_dir are missing"):
        parse_config(PretrainConfig, ["--config", str(path)])


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "large"])
def test_a_file_of_flags_that_does_not_end_is_refused_at_once(tmp_path, kind):
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
    "5,000 digits": (
        "max_steps: " + "9" * 5000 + "\n",
        ":1: max_steps has a value of 5000 characters, above 4096",
    ),
    "lists that share lists": (
        "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi")),
        ":1: a is no flag",
    ),
    "an unknown flag": ("seed: 1\nmax_step: 3\n", r":2: max_step is no flag; did you mean max_steps\?"),
    "a flag twice": ("max_steps: 3\nseed: 1\nmax_steps: 4\n", ":3: max_steps stands in line 1 already"),
    "no value": ("max_steps:\n", ":1: max_steps has no single value"),
    "a list": ("max_steps: [1, 2]\n", ":1: max_steps has no single value"),
    "another file": ("config: other.yaml\n", ":1: config is no flag"),
    "no mapping": ("- 1\n- 2\n", ":1: not a list of flags"),
    "a bracket left open": ("seed: 1\nsplit: [\n", ":3: not YAML"),
    "control characters": ("\0", ": not YAML text"),
    "another encoding": ("种子: 1\n".encode("gb18030"), ": not YAML text"),
    "nested too deep": ("[" * 100_000, ": not YAML text"),
    "a python object": ("seed: !!python/object/apply:os.getpid []\n", ":1: seed has no single value"),
    "a wrong value": (
        "seed: 1\nmax_steps: many\n",
        ":2: max_steps takes a whole number, not 'many'",
    ),
    "bytes": ("split: !!binary 949\n", ":1: split has no single value"),
    "a tag": ("split: !!python/name:os.system ''\n", ":1: split has no single value"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_of_flags_is_refused_where_it_is_wrong(tmp_path, content, message):
    path = tmp_path / "flags.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message) as caught:
        parse(PretrainConfig, "--config", str(path))
    assert len(str(caught.value)) < 300 + len(str(path)) and "\n" not in str(caught.value)


def test_values_mean_the_same_in_a_file_and_as_flags(tmp_path):
    """YAML by itself knows numbers that are no text, and 1e-4 as no number."""
    values = {"output_dir": "007", "max_lr": "1e-3", "max_steps": "1_000", "use_amp": "yes", "scale_loss": ""}
    values.update(amp_dtype="float32", masking_fn="none", use_sharding="none")
    path = tmp_path / "flags.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in values.items()))
    required = ["--model_name_or_path", "x", "--input_dir", "x"]
    by_file = parse_config(PretrainConfig, [*required, "--config", str(path)])
    assert by_file == parse_config(PretrainConfig, [*required, *(f"--{n}={v}" for n, v in values.items())])
    assert (by_file.output_dir, by_file.max_lr, by_file.max_steps) == ("007", 1e-3, 1000)
    assert by_file.use_amp and by_file.scale_loss is by_file.use_sharding is None


def test_an_empty_file_of_flags_says_nothing(tmp_path):
    path = tmp_path / "flags.yaml"
    path.write_text("# nothing\n")
    assert parse(PretrainConfig, "--config", str(path)) == parse(PretrainConfig)


def launched(folder, *words, **environment):
    """What scripts/run_pretrain_static.sh hands to Python."""
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


def test_a_flag_of_ones_own_takes_the_place_of_the_scripts(tmp_path):
    data = {"DATA": "5.0 data/a 7.0 'my data/b'"}
    recipe = parse_config(PretrainConfig, launched(tmp_path, **data))
    assert recipe.input_dir == data["DATA"] and recipe.max_steps == 200_000
    mine = launched(tmp_path, "--max_steps", "7", "--seed=3", "--split=1,0,0", **data)
    config = parse_config(PretrainConfig, mine)
    assert (config.max_steps, config.seed, config.split) == (7, 3, "1,0,0")


def test_a_value_may_begin_with_a_dash():
    assert parse_config(TransConfig, ["--input_path=-x.txt", "--output_path=--y"]).input_path == "-x.txt"


def raised(error):
    def action():
        raise error

    return action


def test_a_wrong_flag_is_one_line_and_exit_code_2(capsys):
    assert exit_code_of(lambda: parse(PretrainConfig, "--max_step", "3") and 0) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ") and len(errors.splitlines()) == 1


def test_a_full_memory_is_exit_code_5(capsys):
    assert exit_code_of(raised(MemoryError())) == 5
    assert capsys.readouterr().err.startswith("error: out of memory; ")


def test_terminal_controls_are_escaped_but_chinese_is_kept(capsys):
    exit_code_of(raised(InputError("文本 a\x1b[2Jb\x9bc\u202ed\u2028e\udcfff")))
    assert capsys.readouterr().err == "error: 文本 a\\x1b[2Jb\\x9bc\\u202ed e\\udcfff\n"


def test_numbers_of_the_defaults_are_finite():
    for config_class in CONFIGS:
        for item in fields(config_class):
            if isinstance(item.default, float):
                assert math.isfinite(item.default)


OUTPUTS = [
    pytest.param(config_class, item.name, id=f"{config_class.__name__}-{item.name}")
    for config_class in CONFIGS
    for item in fields(config_class)
    if item.name in ("output_dir", "output_file", "output_path", "output_prefix")
    and config_class.__name__ != "DoctorConfig"  # which writes nothing
]


@pytest.mark.parametrize("nothing", ["", " "])
@pytest.mark.parametrize("config_class, flag", OUTPUTS)
def test_a_place_to_write_to_is_not_empty(config_class, flag, nothing):
    words = needed(config_class)
    if f"--{flag}" in words:
        place = words.index(f"--{flag}")
        del words[place : place + 2]
    with pytest.raises(InputError, match=f"^{flag} is empty; name"):
        parse_config(config_class, [*words, f"--{flag}={nothing}"])
