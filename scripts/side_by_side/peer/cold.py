"""A task of one item as a whole program, as people write it with transformers; run by the peer's Python.

python -m side_by_side.peer.cold predict FOLDER TEXT TEXT
python -m side_by_side.peer.cold embed FOLDER TEXT
python -m side_by_side.peer.cold train FOLDER PAIRS OUTPUT BATCH_SIZE MAX_SEQ_LEN
"""

import sys


def predict(folder, left, right):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.inference_mode():
        print(model(**tokenizer(left, right, return_tensors="pt")).logits.softmax(-1).tolist())


def embed(folder, text):
    from sentence_transformers import SentenceTransformer

    print(SentenceTransformer(folder, device="cpu").encode([text]).tolist())


def train(folder, pairs, output, batch_size, max_seq_len):
    """Train one step, and write the model."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    with open(pairs, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    encoded = [
        {**tokenizer(left, right, truncation=True, max_length=int(max_seq_len)), "label": int(label)}
        for left, right, label in rows
    ]
    arguments = transformers.TrainingArguments(
        output, max_steps=1, per_device_train_batch_size=int(batch_size), report_to=[], use_cpu=True,
        save_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    collator = transformers.DataCollatorWithPadding(tokenizer)
    trainer = transformers.Trainer(model, arguments, data_collator=collator, train_dataset=encoded)
    trainer.train()
    trainer.save_model(output)


if __name__ == "__main__":
    {"predict": predict, "embed": embed, "train": train}[sys.argv[1]](*sys.argv[2:])
