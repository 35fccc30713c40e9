import pytest
from places import ROOT

from ernie_pair.core.cli.cli import parse_config
from ernie_pair.core.errors import InputError
from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
from ernie_pair.runtime.cpu import cpu_threads
from ernie_pair.runtime.processes.world import count_accumulation_steps, launched_world, local_world, seed_of
from ernie_pair.training.schedule import describe_schedule, learning_rate, log_schedule

RATES = {"max_lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 10, "decay_steps": 110}


@pytest.mark.parametrize("style, expected", [
    ("linear", {1: 1e-4, 10: 1e-3, 60: 5.5e-4, 110: 1e-4, 111: 1e-4, 9999: 1e-4}),
    ("cosine", {10: 1e-3, 35: 1e-4 + 9e-4 * (2 + 2**0.5) / 4, 60: 5.5e-4, 110: 1e-4, 500: 1e-4}),
    ("warmup_stable_decay", {1: 1e-4, 10: 1e-3, 100: 1e-3, 105: 5.5e-4, 110: 1e-4, 500: 1e-4}),
    ("constant", {1: 1e-4, 10: 1e-3, 60: 1e-3, 110: 1e-3, 9999: 1e-3}),
])  # fmt: skip
def test_the_learning_rate_warms_up_decays_and_then_is_constant(style, expected):
    rates = {step: learning_rate(step, style=style, **RATES) for step in expected}
    assert rates == pytest.approx(expected)
    assert learning_rate(1, style=style, **{**RATES, "warmup_steps": 0}) == pytest.approx(1e-3, rel=0.01)


def test_more_ranks_need_fewer_accumulation_steps():
    assert [count_accumulation_steps(512, 64, ranks) for ranks in (1, 2, 8)] == [8, 4, 1]
    with pytest.raises(InputError, match="use global_batch_size=24"):
        count_accumulation_steps(30, 4, 3)


def test_a_stray_launcher_variable_is_reported(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.delenv("PADDLE_TRAINER_ENDPOINTS", raising=False)
    with pytest.raises(InputError, match="PADDLE_TRAINERS_NUM=2"):
        launched_world()


@pytest.mark.parametrize("value", ["x", "", "-1", "1.5", "9" * 5000, "٣"])
@pytest.mark.parametrize("name", [f"PADDLE_{name}" for name in ("TRAINERS_NUM", "TRAINER_ID", "LOCAL_RANK")])
def test_a_non_numeric_launcher_variable_is_an_error(name, value, monkeypatch):
    for each in (name, "PADDLE_LOCAL_SIZE"):
        with monkeypatch.context() as patch:
            patch.setenv(each, value)
            reason = f"^{each}=.{{0,40}} in the environment is not a whole number; unset"
            with pytest.raises(InputError, match=reason):
                launched_world(), local_world()
            assert cpu_threads() > 0


def test_derived_seeds_are_distinct():
    seeds = {seed_of(seed, rank, step, 0) for seed in range(3) for rank in range(3) for step in range(50)}
    assert len(seeds) == 450


def recipe(**changes):
    """The config that scripts/run_pretrain_static.sh passes, read from the script."""
    script = (ROOT / "scripts" / "run_pretrain_static.sh").read_text()
    lines = script.split("<<RECIPE\n")[1].split("\nRECIPE\n")[0].splitlines()
    given = dict(line[2:].split(maxsplit=1) for line in lines)
    names = ("max_lr", "min_lr", "max_steps", "decay_steps", "warmup_rate")
    flags = {"model_name_or_path": "m", "input_dir": "d", "output_dir": "o"}
    flags.update({name: given[name] for name in names}, **changes)
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return parse_config(PretrainConfig, words)


def test_the_recipe_warms_up_for_2000_of_its_200000_steps():
    config = recipe()
    assert (config.max_steps, config.lr_decay_steps, config.num_warmup_steps) == (200_000, 1_980_000, 2_000)
    rates = {step: learning_rate(step, **config.rates) for step in (1, 1_000, 2_000, 200_000, 1_980_000)}
    expected = {1: 5e-8, 1_000: 5e-5, 2_000: 1e-4, 200_000: 1e-5 + 9e-5 * 1_780 / 1_978, 1_980_000: 1e-5}
    assert rates == pytest.approx(expected)


def test_the_learning_rate_schedule_is_described():
    said = "learning rate: rises to 1e-4 at step 2,000, is 9.1e-5 at the last step, 200,000"
    said += " (it would be 1e-5 at step 1,980,000)"
    config, short = recipe(), recipe(decay_steps=0)
    assert describe_schedule(config.rates, config.max_steps) == said
    assert describe_schedule(config.rates, config.max_steps, 99_999) == said + ", is 9.55e-5 at the next step"
    said = "learning rate: rises to 1e-4 at step 2,000, is 1e-5 at the last step, 200,000"
    assert describe_schedule(short.rates, short.max_steps) == said
    rates = {**short.rates, "warmup_steps": 0, "decay_steps": 100}
    said = "learning rate: starts at 9.91e-5, falls to 1e-5 at step 100, is 1e-5 at the last step, 200"
    assert describe_schedule(rates, 200) == said


@pytest.mark.parametrize("rate, is_warned_of", [(0.5, False), (0.51, True), (0.999, True)])
def test_a_warmup_longer_than_half_of_the_run_warns(rate, is_warned_of, caplog):
    config = recipe(warmup_rate=rate)
    log_schedule(config.rates, config.max_steps)
    assert ("more than half of the run" in caplog.text) is is_warned_of


def test_the_warm_up_may_be_given_in_steps():
    config = recipe(warmup_rate="none", warmup_steps=300)
    assert config.num_warmup_steps == config.rates["warmup_steps"] == 300
    assert recipe(warmup_rate="none").num_warmup_steps == 2_000


def test_a_sharding_degree_above_1_implies_sharding():
    assert recipe(dp_degree=2, sharding_degree=4).processes == 8
    assert recipe(use_sharding="true", sharding_degree=4).processes == 4
    assert recipe(use_sharding="false").processes == 1


def test_compatibility_flags_of_the_recipe_are_accepted():
    config = recipe(mp_degree=1, pp_degree=1)
    assert (config.mp_degree, config.pp_degree) == (1, 1)
