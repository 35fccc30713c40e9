"""A lane of the peer, transformers on torch, run by the peer's Python.

python -m side_by_side.peer.lane SPEC.json

SPEC.json gives the task, the sizes of the model, the file of batches (.npz), the precision, and whether the
peer has its best settings or its defaults. The best: batches of similar length, bf16 by autocast, fused
AdamW, gradients set to None, no output layer for tokens without a label. The defaults: pairs padded to one
length, the optimizer of Trainer. Both use scaled_dot_product_attention.
"""

import contextlib
import json
import sys

from side_by_side.turns import Turns, tune_malloc

LEARNING_RATE, WEIGHT_DECAY = 5e-5, 0.01


def run(spec):
    """Load what the task needs, then take turns until no more are requested."""
    if spec["best"]:
        tune_malloc()
    import torch

    torch.manual_seed(1)
    torch.set_num_threads(spec["threads"])
    TASKS[spec["task"]](Peer(spec, torch))


class Peer:
    """What every task of the peer needs: torch, the model's configuration, the batches as tensors."""

    def __init__(self, spec, torch):
        import numpy
        import transformers

        transformers.logging.set_verbosity_error()
        self.spec, self.torch, self.transformers, self.numpy = spec, torch, transformers, numpy
        self.device = "cuda" if spec["device"] == "gpu" else "cpu"

    def new_model(self, name):
        """Return a model with random weights of the transformers class ``name``."""
        config = self.transformers.BertConfig(**self.spec["model"])
        config._attn_implementation = "sdpa"
        return getattr(self.transformers, name)(config).to(self.device)

    def batches(self):
        """Return the batches in the file of the spec: dictionaries of int64 tensors."""
        with self.numpy.load(self.spec["batches"]) as stored:
            count = 1 + max(int(name.rsplit(".", 1)[1]) for name in stored.files)
            found = [{} for _ in range(count)]
            for name in stored.files:
                key, number = name.rsplit(".", 1)
                found[int(number)][key] = self.torch.from_numpy(stored[name]).to(self.device)
        return found

    def casting(self):
        """Return the context of a forward pass: autocast to bfloat16, or nothing."""
        if self.spec["precision"] == "fp32":
            return contextlib.nullcontext()
        return self.torch.autocast(self.device, dtype=self.torch.bfloat16)

    def mask(self, input_ids):
        """Return the attention mask; None if nothing is padded."""
        mask = (input_ids != self.spec["pad_id"]).long()
        return None if self.spec["best"] and bool(mask.all()) else mask

    def train(self, model, loss_of):
        """Run a step on each batch in turn; ``loss_of(batch)`` is its loss."""
        torch = self.torch
        decayed = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
        settings = {"fused": True} if self.spec["best"] else {}
        optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, **settings)
        model.train()
        batches, turns = self.batches(), Turns()
        turns.begin()
        while True:
            for batch in batches:
                with self.casting():
                    loss = loss_of(batch)
                loss.backward()
                if self.spec["grad_clip"]:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), self.spec["grad_clip"])
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                turns.end_step(loss=float(loss))  # which waits for a GPU


def train_pairs(peer):
    """Fine-tune BertForSequenceClassification."""
    model = peer.new_model("BertForSequenceClassification")

    def loss_of(batch):
        ids, types = batch["input_ids"], batch["token_type_ids"]
        if not peer.spec["best"]:
            ids, types = _padded(peer, ids, peer.spec["pad_id"]), _padded(peer, types, 0)
        return model(ids, attention_mask=peer.mask(ids), token_type_ids=types, labels=batch["labels"]).loss

    peer.train(model, loss_of)


def _padded(peer, tensor, fill):
    return peer.torch.nn.functional.pad(tensor, (0, peer.spec["padded_to"] - tensor.shape[1]), value=fill)


def pretrain(peer):
    """Train BertForPreTraining on masked words and sentence order."""
    model = peer.new_model("BertForPreTraining")
    cross_entropy = peer.torch.nn.functional.cross_entropy

    def loss_of(batch):
        ids, types, mask = batch["input_ids"], batch["token_type_ids"], peer.mask(batch["input_ids"])
        places, labels = batch["masked_positions"], batch["masked_lm_labels"]
        if not peer.spec["best"]:
            spread = peer.torch.full_like(ids, -100).flatten()
            spread[places] = labels
            return model(
                ids,
                attention_mask=mask,
                token_type_ids=types,
                labels=spread.view_as(ids),
                next_sentence_label=batch["next_sentence_labels"],
            ).loss
        hidden, pooled = model.bert(ids, attention_mask=mask, token_type_ids=types)[:2]
        words, order = model.cls(hidden.flatten(0, 1)[places], pooled)
        order_loss = cross_entropy(order.float(), batch["next_sentence_labels"])
        return cross_entropy(words.float(), labels) + order_loss

    peer.train(model, loss_of)


def ask(peer):
    """Run BertForSequenceClassification on all texts in every step, from texts to logits."""
    torch = peer.torch
    model = peer.new_model("BertForSequenceClassification").eval()
    tokenizer = _tokenizer(peer)
    left, right = _texts(peer)
    turns = Turns()
    turns.begin()
    while True:
        with torch.inference_mode(), peer.casting():
            encoded = tokenizer(left, right, truncation=True, max_length=peer.spec["max_seq_len"])
            order = range(len(left))
            if peer.spec["best"]:
                order = sorted(order, key=lambda row: len(encoded["input_ids"][row]))
            logits = [None] * len(left)
            for first in range(0, len(left), peer.spec["batch_size"]):
                rows = order[first : first + peer.spec["batch_size"]]
                picked = {name: [column[row] for row in rows] for name, column in encoded.items()}
                batch = tokenizer.pad(picked, return_tensors="pt").to(peer.device)
                for row, answer in zip(rows, model(**batch).logits.float().cpu().numpy()):
                    logits[row] = answer
        turns.end_step()


def encode(peer):
    """Tokenize all texts in every step, as a user's map over a data set does."""
    tokenizer = _tokenizer(peer)
    left, right = _texts(peer)
    turns = Turns()
    turns.begin()
    while True:
        tokenizer(left, right, truncation=True, max_length=peer.spec["max_seq_len"])
        turns.end_step()


def _tokenizer(peer):
    return peer.transformers.BertTokenizerFast(peer.spec["vocab_file"], do_lower_case=True)


def _texts(peer):
    with open(peer.spec["texts"], encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [row[0] for row in rows], [row[1] for row in rows]


TASKS = {"train_pairs": train_pairs, "pretrain": pretrain, "ask": ask, "encode": encode}


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        run(json.load(file))
