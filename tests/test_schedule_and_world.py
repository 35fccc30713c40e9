import pytest

from data_tools.errors import InputError
from ernie_pair.schedule import learning_rate
from ernie_pair.world import World, launched_world, passes_per_update, seed_of

RATES = {"max_lr": 1e-3, "min_lr": 1e-4, "warmup_steps": 10, "decay_steps": 110}


@pytest.mark.parametrize(
    "step, rate", [(1, 1e-4), (10, 1e-3), (60, 5.5e-4), (110, 1e-4), (111, 1e-4), (9999, 1e-4)]
)
def test_the_rate_warms_up_decays_and_stays(step, rate):
    assert learning_rate(step, **RATES) == pytest.approx(rate)


@pytest.mark.parametrize(
    "step, rate", [(10, 1e-3), (35, 1e-4 + 9e-4 * (2 + 2**0.5) / 4), (60, 5.5e-4), (110, 1e-4), (500, 1e-4)]
)
def test_the_cosine_falls_slowly_then_fast_then_slowly(step, rate):
    assert learning_rate(step, style="cosine", **RATES) == pytest.approx(rate)


def test_without_warmup_the_first_update_has_nearly_the_full_rate():
    assert learning_rate(1, **{**RATES, "warmup_steps": 0}) == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize("data_ranks, passes", [(1, 8), (2, 4), (8, 1)])
def test_more_ranks_mean_fewer_passes_for_the_same_update(data_ranks, passes):
    assert passes_per_update(512, 64, data_ranks) == passes


def test_a_global_batch_that_does_not_divide_names_the_nearest():
    with pytest.raises(InputError, match="use --global_batch_size 24"):
        passes_per_update(30, 4, 3)


def test_a_stray_launcher_variable_is_named(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.delenv("PADDLE_TRAINER_ENDPOINTS", raising=False)
    with pytest.raises(InputError, match="PADDLE_TRAINERS_NUM=2"):
        launched_world()


def test_a_rank_outside_the_world_is_a_bug():
    with pytest.raises(ValueError):
        World(2, 2)


def test_neighbouring_seeds_are_unrelated():
    assert (
        len({seed_of(seed, rank, step, 0) for seed in range(3) for rank in range(3) for step in range(50)})
        == 450
    )
