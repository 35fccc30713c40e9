"""A lane of the peer, transformers and sentence-transformers on torch, run by the peer's Python.

python -m side_by_side.peer.lane SPEC.json

SPEC.json gives the task, the sizes of the model, the file of batches (.npz), the precision, and whether the
peer has its best settings or its defaults. The best: batches of similar length, for answers of
the fastest of BATCH_SIZES with weights in bf16; in training autocast, fused AdamW, gradients set to None, no
output layer for tokens without a label. The defaults: pairs padded to one length, the optimizer of Trainer.
Both use scaled_dot_product_attention.
"""

import contextlib
import json
import sys
import time

from side_by_side.turns import Turns, tune_malloc

LEARNING_RATE, WEIGHT_DECAY = 5e-5, 0.01
BATCH_SIZES = (16, 32, 64)


class Peer:
    """What every task of the peer needs: torch, the model's configuration, the batches as tensors."""

    def __init__(self, spec):
        self.turns = Turns()
        import torch
        import transformers

        torch.manual_seed(1)
        torch.set_num_threads(spec["threads"])
        transformers.logging.set_verbosity_error()
        self.spec, self.torch, self.transformers = spec, torch, transformers
        self.device = "cuda" if spec["device"] == "gpu" else "cpu"

    def new_model(self, name):
        config = self.transformers.BertConfig(**self.spec["model"])
        config._attn_implementation = "sdpa"
        return getattr(self.transformers, name)(config).to(self.device)

    def batches(self):
        import numpy

        batches = {}
        with numpy.load(self.spec["batches"]) as stored:
            for name in stored.files:
                key, number = name.rsplit(".", 1)
                batches.setdefault(int(number), {})[key] = self.torch.from_numpy(stored[name]).to(self.device)
        return [batches[number] for number in sorted(batches)]

    def casting(self):
        if self.spec["precision"] == "fp32":
            return contextlib.nullcontext()
        return self.torch.autocast(self.device, dtype=self.torch.bfloat16)

    def mask(self, input_ids):
        mask = (input_ids != self.spec["pad_id"]).long()
        return None if self.spec["best"] and bool(mask.all()) else mask

    def tokenizer_and_texts(self):
        tokenizer = self.transformers.BertTokenizerFast(self.spec["vocab_file"], do_lower_case=True)
        with open(self.spec["texts"], encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        return tokenizer, [row[0] for row in rows], [row[1] for row in rows]

    def repeat(self, model, step):
        """Run ``step`` in every turn: in the precision, and at its best in the fastest of BATCH_SIZES."""
        if self.spec["precision"] == "bf16":
            model.bfloat16()

        def processor_seconds(size):
            before = time.process_time()
            step(batch_size=size)
            return time.process_time() - before

        settings = {}
        if self.spec["best"]:
            step()  # warms up
            settings = {"batch_size": min(BATCH_SIZES, key=processor_seconds)}
        self.turns.repeat(lambda: step(**settings) is None)

    def train(self, model, loss_of):
        """Run a step on each batch in turn; ``loss_of(batch)`` is its loss."""
        torch = self.torch
        parameters = list(model.parameters())
        groups = [
            {"params": [each for each in parameters if each.ndim > 1], "weight_decay": WEIGHT_DECAY},
            {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
        ]
        settings = {"fused": True} if self.spec["best"] else {}
        optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, **settings)
        model.train()
        batches = self.batches()
        self.turns.begin()
        while True:
            for batch in batches:
                with self.casting():
                    loss = loss_of(batch)
                loss.backward()
                if self.spec["grad_clip"]:
                    torch.nn.utils.clip_grad_norm_(parameters, self.spec["grad_clip"])
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                self.turns.end_step(loss=float(loss))  # which waits for a GPU


def train_pairs(peer):
    model = peer.new_model("BertForSequenceClassification")

    def loss_of(batch):
        ids, types = batch["input_ids"], batch["token_type_ids"]
        if not peer.spec["best"]:
            pad, missing = peer.torch.nn.functional.pad, peer.spec["padded_to"] - ids.shape[1]
            ids, types = pad(ids, (0, missing), value=peer.spec["pad_id"]), pad(types, (0, missing), value=0)
        return model(ids, attention_mask=peer.mask(ids), token_type_ids=types, labels=batch["labels"]).loss

    peer.train(model, loss_of)


def pretrain(peer):
    model = peer.new_model("BertForPreTraining")
    cross_entropy = peer.torch.nn.functional.cross_entropy

    def loss_of(batch):
        ids, places, order = batch["input_ids"], batch["masked_positions"], batch["next_sentence_labels"]
        labels = batch["masked_lm_labels"]
        inputs = {"attention_mask": peer.mask(ids), "token_type_ids": batch["token_type_ids"]}
        if not peer.spec["best"]:
            spread = peer.torch.full_like(ids, -100).flatten()
            spread[places] = labels
            return model(ids, **inputs, labels=spread.view_as(ids), next_sentence_label=order).loss
        hidden, pooled = model.bert(ids, **inputs)[:2]
        words, orders = model.cls(hidden.flatten(0, 1)[places], pooled)
        return cross_entropy(words.float(), labels) + cross_entropy(orders.float(), order)

    peer.train(model, loss_of)


def ask(peer):
    """Run BertForSequenceClassification on all texts in every step, from texts to logits."""
    model = peer.new_model("BertForSequenceClassification").eval()
    tokenizer, left, right = peer.tokenizer_and_texts()

    def step(batch_size=peer.spec["batch_size"]):
        with peer.torch.inference_mode():
            encoded = tokenizer(left, right, truncation=True, max_length=peer.spec["max_seq_len"])
            order = range(len(left))
            if peer.spec["best"]:
                order = sorted(order, key=lambda row: len(encoded["input_ids"][row]))
            logits = [None] * len(left)
            for first in range(0, len(left), batch_size):
                rows = order[first : first + batch_size]
                picked = {name: [column[row] for row in rows] for name, column in encoded.items()}
                batch = tokenizer.pad(picked, return_tensors="pt").to(peer.device)
                for row, answer in zip(rows, model(**batch).logits.float().cpu().numpy()):
                    logits[row] = answer

    peer.repeat(model, step)


def embed(peer):
    """Run SentenceTransformer.encode on all texts in every step, with weights in the precision."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(peer.spec["folder"], device=peer.device)
    with open(peer.spec["texts"], encoding="utf-8") as file:
        texts = file.read().splitlines()
    peer.repeat(model, lambda **settings: model.encode(texts, show_progress_bar=False, **settings))


def rerank(peer):
    """Run CrossEncoder.predict on all pairs in every step, with weights in the precision."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(peer.spec["folder"], device=peer.device)
    with open(peer.spec["texts"], encoding="utf-8") as file:
        pairs = [tuple(line.rstrip("\n").split("\t")) for line in file]
    peer.repeat(model, lambda **settings: model.predict(pairs, show_progress_bar=False, **settings))


LANES = (train_pairs, pretrain, ask, embed, rerank)
TASKS = {task.__name__: task for task in LANES}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        lane = json.load(file)
    if lane["best"]:
        tune_malloc()  # before torch is loaded
    TASKS[lane["task"]](Peer(lane))
