"""Datasets of token ids, a collator of one's own, and a look at the rows, as the tutorials write them."""

import numpy as np
import paddle
import pytest
from datasets import Dataset
from paddlenlp.data import DataCollatorWithPadding, Pad, Stack, Tuple
from paddlenlp.datasets import IterDataset, MapDataset
from paddlenlp.transformers import ErnieTokenizer
from pandas import DataFrame
from run_files import events, files_of, killed_after
from tiny_pair import DEV, TRAIN, UNTRAINED, as_dicts, candidate_rows, write_pairs, write_rows

from ernie_pair import PairConfig, PairTokenizer, PairTrainer
from ernie_pair.core.errors import InputError

SETTINGS = {**UNTRAINED, "max_seq_len": 12, "max_steps": 4, "eval_freq": 2, "checkpoint_steps": 2}


@pytest.fixture(scope="module")
def tokenizer(model):
    return ErnieTokenizer.from_pretrained(str(model))


@pytest.fixture
def make(tmp_path, model):
    def trainer(*datasets, folder="out", data_collator=None, **settings):
        config = PairConfig(str(tmp_path / folder), **{**SETTINGS, **settings})
        return PairTrainer(model, config, *(datasets or (TRAIN, DEV)), data_collator=data_collator)

    return trainer


@pytest.fixture(scope="module")
def by_texts(tmp_path_factory, model):
    """The events of a run on the texts, its last checkpoint, and what its best model predicts of DEV."""
    folder = tmp_path_factory.mktemp("by_texts") / "out"
    trainer = PairTrainer(model, PairConfig(str(folder), **SETTINGS), TRAIN, DEV)
    trainer.train()
    return events(folder), files_of(folder / "model_last"), trainer.predict(DEV).predictions


def convert(example, tokenizer):
    row = tokenizer(text=example["query"], text_pair=example["title"], max_seq_len=12)
    return row["input_ids"], row["token_type_ids"], np.array([example["label"]], dtype="int64")


class Rows(paddle.io.Dataset):
    """A dataset of Paddle, with an index that has no end and without an __iter__."""

    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def __getitem__(self, index):
        return self.rows[index % len(self.rows)]

    def __len__(self):
        return len(self.rows)


class RowsWithoutIter(Rows):
    def __iter__(self):
        raise NotImplementedError("as in some base classes")


class Stream(paddle.io.IterableDataset):
    def __init__(self, rows):
        super().__init__()
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def tokenized_dataset(rows, tokenizer, drops=("query", "title")):
    def tokenize(batch):
        return tokenizer(batch["query"], batch["title"], max_seq_len=12, return_attention_mask=True)

    def as_columns(batch):
        found = tokenize(batch)
        found = found if isinstance(found, list) else [dict(zip(found, row)) for row in zip(*found.values())]
        return {name: [row[name] for row in found] for name in found[0]}

    return Dataset.from_list(as_dicts(rows)).map(as_columns, batched=True, remove_columns=list(drops))


def converted(rows, tokenizer):
    return [convert(row, tokenizer) for row in as_dicts(rows)]


KINDS = {
    "list of tuples": converted,
    "generator": lambda rows, tok: (row for row in converted(rows, tok)),
    "MapDataset": lambda rows, tok: MapDataset(as_dicts(rows)).map(lambda row: convert(row, tok)),
    "IterDataset": lambda rows, tok: IterDataset(as_dicts(rows)).map(lambda row: convert(row, tok)),
    "IterDataset of a generator": lambda rows, tok: IterDataset(row for row in converted(rows, tok)),
    "Dataset": tokenized_dataset,
    "Dataset with its texts": lambda rows, tok: tokenized_dataset(rows, tok, ()),
    "Dataset of arrays": lambda rows, tok: tokenized_dataset(rows, tok).with_format("numpy"),
    "iterable Dataset": lambda rows, tok: tokenized_dataset(rows, tok).to_iterable_dataset(),
    "Paddle's Dataset": lambda rows, tok: Rows(converted(rows, tok)),
    "with a raising iter": lambda rows, tok: RowsWithoutIter(converted(rows, tok)),
    "Paddle's IterableDataset": lambda rows, tok: Stream(converted(rows, tok)),
    "tensors": lambda rows, tok: [tuple(map(paddle.to_tensor, row)) for row in converted(rows, tok)],
    "DataFrame": lambda rows, tok: DataFrame(converted(rows, tok), columns=COLUMNS),
    "without token types": lambda rows, tok: [
        {"input_ids": ids, "labels": label.item()} for ids, _, label in converted(rows, tok)
    ],
}
COLUMNS = ["input_ids", "token_type_ids", "label"]


@pytest.fixture(scope="module")
def ids(tokenizer):
    return converted(TRAIN, tokenizer), converted(DEV, tokenizer)


def test_tokenized_sets_of_every_kind_are_the_same(make, tokenizer):
    trainer = make()
    sources = {kind: trainer._pairs_of("train", rows(TRAIN, tokenizer)) for kind, rows in KINDS.items()}
    hashes = {kind: source.sha256() for kind, source in sources.items()}
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.parametrize("kind", [KINDS[name] for name in ("generator", "Dataset")])
def test_a_tokenized_set_gives_the_run_of_its_texts(tmp_path, make, tokenizer, by_texts, kind):
    its_events, its_files, predictions = by_texts
    trainer = make(kind(TRAIN, tokenizer), kind(DEV, tokenizer))
    trainer.train()
    assert events(tmp_path / "out") == its_events
    ours = files_of(tmp_path / "out" / "model_last")
    assert {name for name in ours if ours[name] != its_files[name]} <= {"state.json", "MANIFEST.json"}
    again = make(kind(TRAIN, tokenizer), kind(DEV, tokenizer)).train()
    assert again.step == 4  # the same data: it is finished
    output = trainer.predict(kind(DEV, tokenizer))
    assert output.predictions.tobytes() == predictions.tobytes()
    assert output.label_ids.tolist() == [label for *_, label in DEV]
    by_kind, by_name = trainer.evaluate(kind(DEV, tokenizer)), trainer.evaluate()
    assert by_kind["loss"] == by_name["loss"] == output.metrics["loss"]
    unlabelled = [row[:2] for row in converted(DEV, tokenizer)]
    assert trainer.predict(unlabelled).label_ids is None


@pytest.mark.parametrize("kind", [Rows, RowsWithoutIter, Stream, MapDataset, IterDataset])
@pytest.mark.parametrize("texts", [list, as_dicts])
def test_texts_may_come_from_sets_of_paddle_too(make, kind, texts):
    found, expected = (make()._pairs_of("train", rows).read() for rows in (kind(texts(TRAIN)), TRAIN))
    assert (found.left, found.right, found.sha256) == (expected.left, expected.right, expected.sha256)


STREAMED = {"streaming": True, "max_steps": 8, "shuffle_buffer": 32}  # into the second epoch


@pytest.mark.parametrize(
    "flags", [STREAMED, {"symmetric": "consistency", "class_weights": "balanced"}], ids=str
)
def test_flags_of_data_and_loss_work_on_ids(tmp_path, make, ids, flags):
    make(folder="texts", **flags).train()
    make(Stream(ids[0]), DEV, **flags).train()
    assert events(tmp_path / "out") == events(tmp_path / "texts")


def test_what_needs_texts_is_refused_for_ids(tmp_path, make, ids):
    with pytest.raises(InputError, match="symmetric average scores the dev pairs .* eval_dataset holds"):
        make(TRAIN, ids[1], symmetric="average").train()
    with pytest.raises(InputError, match="symmetric='average' asks for both orders .* dataset holds"):
        make().predict(ids[1], symmetric="average")
    candidates = make().encode([row[:2] + (0,) for row in candidate_rows(4, 0)])
    with pytest.raises(InputError, match="ranking tells queries by their texts, and train_dataset"):
        make(candidates, list(candidate_rows(4, 1)), target="ranking").train()
    assert not list(tmp_path.glob("out/checkpoints/*"))


def test_a_bad_row_of_ids_is_named_and_nothing_written(tmp_path, make, ids):
    rows = [*ids[0][:3], ([1, 5, 99, 2, 5, 2], [0, 0, 0, 0, 1, 1], np.array([1]))]
    with pytest.raises(InputError, match=r"^train_dataset\[3\]: the id 99 is outside of the vocabulary"):
        make(rows, DEV).train()
    assert not (tmp_path / "out").exists()
    loader = paddle.io.DataLoader(MapDataset(TRAIN), batch_size=2, collate_fn=make().collate)
    with pytest.raises(InputError, match=r"^train_dataset\[0\]: input_ids has the shape \[2, \d+\]"):
        make(loader, DEV).train()


def losses(folder):
    return [event["loss"] for event in events(folder) if "loss" in event]


def fixed_length(features):
    """Pad to 12 tokens with plain lists."""
    names = ("input_ids", "token_type_ids")
    found = {name: [row[name] + [0] * (12 - len(row[name])) for row in features] for name in names}
    return {**found, "labels": [[row["labels"]] for row in features]} if "labels" in features[0] else found


@pytest.mark.parametrize(
    "kind, flags",
    [("lists", {}), ("PaddleNLP", {"gradient_accumulation_steps": 2}), ("own", {"streaming": True})],
)
def test_a_collator_gives_the_losses_of_the_default(tmp_path, make, tokenizer, kind, flags):
    flags = {"dropout": 0.0, **flags}
    trainer = make(folder="default", **flags)
    trainer.train()
    collator = DataCollatorWithPadding(tokenizer, return_attention_mask=True)
    collator = {"lists": fixed_length, "PaddleNLP": collator, "own": trainer.collate}[kind]
    called = []

    def counted(features):
        called.append(len(features))
        return collator(features)

    other = make(data_collator=counted, **flags)
    other.train()
    np.testing.assert_allclose(losses(tmp_path / "out"), losses(tmp_path / "default"), atol=1e-6)
    assert sum(called) >= 4 * 16 + len(DEV)  # training and evaluation
    called.clear()
    expected = trainer.predict([row[:2] for row in DEV]).predictions
    np.testing.assert_allclose(other.predict([row[:2] for row in DEV]).predictions, expected, atol=1e-6)
    assert sum(called) == len(DEV)


def test_a_resumed_run_with_a_collator_sees_the_same_rows(tmp_path, make):
    def train(seen, folder="out"):
        def collate(features):
            if "labels" in features[0]:
                seen.append([row["input_ids"] for row in features])
            return fixed_length(features)

        make(folder=folder, data_collator=collate, eval_freq=100).train()

    whole, seen = [], []
    train(whole, "whole")
    with killed_after(2):
        train(seen)
    train(seen)
    assert files_of(tmp_path / "out" / "model_last") == files_of(tmp_path / "whole" / "model_last")
    assert all(batch in seen for batch in whole)


def changed(**arrays):
    def collate(features):
        found = {name: np.array(value) for name, value in fixed_length(features).items()}
        for name, change in arrays.items():
            found[name] = change(found)
        return {name: value for name, value in found.items() if value is not None}

    return collate


BAD = {
    "nothing": lambda features: None,
    "no ids": changed(input_ids=lambda found: None),
    "fewer rows": changed(input_ids=lambda f: f["input_ids"][:-1]),
    "one row": changed(input_ids=lambda f: f["input_ids"][0]),
    "more arrays": changed(special=lambda f: 1),
    "an empty mask": changed(attention_mask=lambda f: f["input_ids"] * 0),
    "unknown ids": changed(input_ids=lambda f: f["input_ids"] + 50),
    "long rows": changed(input_ids=lambda f: np.tile(f["input_ids"], 20)),
    "padding in front": changed(input_ids=lambda f: np.roll(f["input_ids"], 1, axis=1)),
    "other padding": changed(input_ids=lambda f: np.where(f["input_ids"] == 0, 7, f["input_ids"])),
    "no segments": changed(input_ids=lambda f: np.minimum(f["input_ids"], 5), token_type_ids=lambda f: None),
    "other segments": changed(token_type_ids=lambda f: f["token_type_ids"] + 5),
    "other labels": changed(labels=lambda f: 1 - f["labels"]),
    "fewer labels": changed(labels=lambda f: f["labels"][1:]),
    "no array": lambda features: {"input_ids": [row["input_ids"] for row in features]},
}


@pytest.mark.parametrize("name", BAD)
def test_a_batch_that_cannot_be_used_is_refused(make, name):
    with pytest.raises(InputError, match="^data_collator returned "):
        make(data_collator=BAD[name]).evaluate(DEV)


def test_batches_of_encode_and_collate_are_those_of_training(make, tokenizer):
    trainer = make()
    rows = trainer.encode(DEV)
    assert rows[0].keys() == {"input_ids", "token_type_ids", "labels"} and len(rows) == len(DEV)
    assert [len(row["input_ids"]) for row in rows] == [len(row["token_type_ids"]) for row in rows]
    pads = Pad(axis=0, pad_val=0), Pad(axis=0, pad_val=0), Stack(dtype="int64")
    batchify, loader = Tuple(*pads), paddle.io.DataLoader(rows, batch_size=8, collate_fn=trainer.collate)
    theirs = [convert(row, tokenizer) for row in as_dicts(DEV)]
    for number, batch in enumerate(loader):
        expected = batchify(theirs[8 * number : 8 * number + 8])
        for name, array in zip(("input_ids", "token_type_ids"), expected):
            assert np.array_equal(np.asarray(batch[name]), array) and batch[name].dtype == paddle.int64
        assert np.array_equal(np.asarray(batch["labels"]), expected[2].ravel())
    assert trainer.encode([row[:2] for row in DEV])[0].keys() == {"input_ids", "token_type_ids"}
    assert trainer.collate(trainer.encode([row[:2] for row in DEV])).keys() == {"input_ids", "token_type_ids"}


def test_the_tokenizer_encodes_as_training_does(tmp_path, make, model, tokenizer):
    trainer = make()
    ours, alone = trainer.tokenizer, PairTokenizer(model, 12)
    for (left, right, _), row in zip(DEV, trainer.encode([pair[:2] for pair in DEV])):
        assert ours(left, right) == dict(tokenizer(left, text_pair=right, max_seq_len=12)) == row
    texts = [[pair[side] for pair in DEV] for side in (0, 1)]
    assert alone(*texts) == ours(*texts, truncation=True) and len(ours) == len(tokenizer)
    assert ours("今天") == dict(tokenizer("今天"))
    assert alone("今天", "明", max_length=5) == alone("今天", "明", 5)
    ids = ours("今天", "x")["input_ids"]
    tokens = ours.convert_ids_to_tokens(ids)
    assert tokens == ["[CLS]", "今", "天", "[SEP]", "[UNK]", "[SEP]"] == tokenizer.convert_ids_to_tokens(ids)
    assert ours.convert_tokens_to_ids(tokens) == ids and ours.convert_ids_to_tokens(1) == "[CLS]"
    assert ours.convert_tokens_to_ids("没有") == ours.convert_tokens_to_ids("[UNK]")
    for name in ("pad_token_id", "pad_token_type_id"):
        assert getattr(ours, name) == getattr(tokenizer, name)
    ours.save_pretrained(tmp_path / "saved")
    again = ErnieTokenizer.from_pretrained(str(tmp_path / "saved"))
    assert again("今天", text_pair="明天")["input_ids"] == tokenizer("今天", text_pair="明天")["input_ids"]
    saved = sorted(path.name for path in (tmp_path / "saved").iterdir())
    assert saved == ["tokenizer_config.json", "vocab.txt"]


def test_a_pair_is_shown_with_what_is_cut(make):
    trainer = make()
    shown = trainer.show(("今天气候真", "明天气候真很不"))
    assert shown.tokens == "[CLS] 今 天 气 候 真 [SEP] 明 天 气 候 [SEP]".split()
    assert shown.token_type_ids == [0] * 7 + [1] * 5 and shown.cut == ([], ["真", "很", "不"])
    assert shown.input_ids == trainer.tokenizer("今天气候真", "明天气候真很不")["input_ids"]
    first, *lines = repr(shown).splitlines()
    assert first == "12 tokens, cut to 12 tokens, without 3 tokens of the second text (真 很 不)"
    assert [line.split()[0] for line in lines] == ["tokens", "ids", "segments"]
    assert lines[1].split()[1:] == list(map(str, shown.input_ids))
    assert repr(trainer.show(DEV[0])).startswith("12 tokens, cut to 12") == (sum(map(len, DEV[0][:2])) > 9)
    assert "nothing cut" in repr(trainer.show(("今", "天")))


def test_the_rows_of_any_dataset_can_be_looked_at(tmp_path, make, ids):
    expected = [{"sentence1": a, "sentence2": b, "label": label} for a, b, label in TRAIN]
    file = str(write_pairs(tmp_path / "train.tsv", 90, seed=0))
    for given in (file, TRAIN, as_dicts(TRAIN), iter(TRAIN)):
        trainer = make(given, DEV)
        assert list(trainer.train_rows()) == expected == list(trainer.train_rows())
    assert [row["label"] for row in trainer.eval_rows()] == [label for *_, label in DEV]
    assert make(file, DEV).train_dataset == file
    assert list(make(ids[0], DEV).train_rows()) == make().encode(TRAIN)
    bad = make(str(write_rows(tmp_path / "bad.tsv", [("今", "天", 1), ("今", "天", 7)])), DEV)
    with pytest.raises(InputError, match=r"bad.tsv:2: label '7' is not one of"):
        list(bad.train_rows())
