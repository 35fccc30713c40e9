"""--symmetric average and consistency: the loss over both orders, and how such a model is evaluated."""

import numpy as np
import pytest
from asked import evaluated
from reference_loss import TableModel, cross_entropies
from run_files import events
from scipy.special import log_softmax
from tiny_pair import VOCAB, toy_rows, train_config, write_model
from tiny_pair_job import run, tiny_job, write_files

from data_tools.text.wordpiece import WordPiece
from ernie_pair.core.errors import InputError
from ernie_pair.inference.token_rows import Batch, encode_texts, exchange_texts
from ernie_pair.models.temperature import read_calibration
from ernie_pair.pairs.train.loss import PairLoss
from ernie_pair.pairs.train.train_pair import train_pair
from ernie_pair.pairs.train.trainer import PairTrainer

IDS = np.array([[1, 5, 6, 2, 7, 2], [1, 5, 2, 8, 9, 2], [1, 4, 2, 3, 2, 0]])
TYPES = np.array([[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0]])
BATCH = Batch(IDS, TYPES, np.array([0, 2, 1]))
WEIGHTS = np.array([1.0, 2.5, 0.5], dtype=np.float32)


def weighted(values, weights):
    rows = np.ones(3) if weights is None else weights[BATCH.labels]
    return (rows * values).sum() / rows.sum()


def test_swapping_encoded_rows_equals_encoding_swapped_texts(tmp_path):
    tokenizer = WordPiece.from_file(write_model(tmp_path) / "vocab.txt")
    left, right, labels = zip(*toy_rows(40, 3))
    rows, other = (
        encode_texts(a, b, np.array(labels), tokenizer, 64) for a, b in ((left, right), (right, left))
    )
    exchanged, expected = exchange_texts(rows.batch(np.arange(40))), other.batch(np.arange(40))
    for found, wanted in zip(exchanged[:3], expected[:3]):
        assert np.array_equal(found, wanted)
    assert (exchanged.input_ids != rows.batch(np.arange(40)).input_ids).any() and len(VOCAB) > 16


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_average_uses_the_mean_logits_of_both_orders(weights):
    model = TableModel()
    answer = PairLoss(0.0, weights, "average")(model, BATCH)
    exchanged = exchange_texts(BATCH)
    assert np.array_equal(model.ids, np.concatenate([IDS, exchanged.input_ids]))
    assert np.array_equal(model.types, np.concatenate([TYPES, exchanged.token_type_ids]))
    mean = model.answer.numpy().reshape(2, 3, 3).mean(axis=0)
    expected = weighted(cross_entropies(mean, BATCH.labels), weights)
    assert float(answer.loss) == pytest.approx(expected, rel=1e-6)
    _, divergence, right = answer.numbers.tolist()
    assert answer.rows == 3 and divergence == 0.0 and right == np.sum(mean.argmax(1) == BATCH.labels)
    answer.loss.backward()
    of_first, of_second = np.split(model.answer.grad.numpy(), 2)
    assert np.array_equal(of_first, of_second) and np.abs(of_first).max() > 0.01


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_consistency_adds_the_divergence_of_the_orders(weights):
    model = TableModel()
    answer = PairLoss(0.0, weights, "consistency", 3.0)(model, BATCH)
    first, second = np.split(model.answer.numpy(), 2)
    log_p, log_q = (log_softmax(logits.astype(np.float64), axis=1) for logits in (first, second))
    both_ways = ((np.exp(log_p) - np.exp(log_q)) * (log_p - log_q)).sum(axis=1) / 2
    entropy = (cross_entropies(first, BATCH.labels) + cross_entropies(second, BATCH.labels)) / 2
    assert float(answer.loss) == pytest.approx(weighted(entropy + 3 * both_ways, weights), rel=1e-5)
    assert answer.numbers.tolist()[1] == pytest.approx(weighted(both_ways, weights), rel=1e-5)
    assert answer.rows == 6


@pytest.mark.parametrize("symmetric", ["average", "consistency"])
def test_a_step_runs_two_passes_and_counts_their_flops(tmp_path, symmetric):
    folder = write_files(tmp_path)
    (plain,), (both,) = (run(tiny_job(folder, symmetric=kind), 1) for kind in ("none", symmetric))
    assert both["flops"] == 2 * plain["flops"] and both["tokens"] == plain["tokens"]
    assert both["loss"] != plain["loss"] and ("divergence" in both) == (symmetric == "consistency")


def test_an_averaged_model_is_evaluated_in_both_orders(tmp_path):
    config = train_config(tmp_path, symmetric="average", epochs=3, learning_rate=2e-3, eval_freq=4)
    train_pair(config)
    best = max(events(tmp_path / "out", "valid"), key=lambda event: event["accuracy"])
    places = tmp_path / "out" / "best", config.dev_file
    found = evaluated(*places, batch_size=16)
    assert read_calibration(tmp_path / "out" / "best", 2).symmetric == found["symmetric"] == "average"
    assert found["loss"] == best["loss"] and found["accuracy"] == best["accuracy"]
    assert found["swap"]["flip_rate"] == 0.0
    one_order = evaluated(*places, symmetric="none", batch_size=16)
    assert one_order["loss"] != best["loss"] and one_order["swap"]["mean_difference"] > 0
    checkpoint = (tmp_path / "out" / "model_last").resolve()
    assert evaluated(checkpoint, places[1], batch_size=16)["symmetric"] == "average"
    with pytest.raises(InputError, match="symmetric was 'average' and is now 'none'"):
        train_pair(train_config(tmp_path, symmetric="none", epochs=3, learning_rate=2e-3, eval_freq=4))


def test_a_consistency_model_is_evaluated_in_one_order(tmp_path):
    config = train_config(tmp_path, symmetric="consistency", epochs=1)
    result = PairTrainer(config.model_name_or_path, config, config.train_file, config.dev_file).train()
    assert not (result.best_model / "calibration.json").exists()
    assert evaluated(result.best_model, config.dev_file)["symmetric"] == "none"


def test_python_scores_an_averaged_model_in_both_orders(tmp_path):
    config = train_config(tmp_path, symmetric="average", epochs=1)
    trainer = PairTrainer(config.model_name_or_path, config, config.train_file, config.dev_file)
    result = trainer.train()
    pairs = [("今天天气", "好不好"), ("你我", "他们")]
    there, back = (trainer.predict(each) for each in (pairs, [(b, a) for a, b in pairs]))
    assert np.array_equal(there.predictions, back.predictions)
    assert trainer.evaluate()["loss"] == result.metrics["loss"]
    assert trainer.evaluate(symmetric="none")["loss"] != result.metrics["loss"]
