"""Answer what transformers and sentence-transformers say; run by a peer's Python for `client`.

Reads a request per line of standard input, {"do": name, "out": file, ...}, and writes an answer per line of
standard output, {"result": ...} or {"error": ...}; arrays go to the file, .npz. This package is not imported.
"""

import json
import sys
import traceback

import numpy as np

from other_libraries import tiny_models


def versions():
    from importlib import metadata

    installed = {}
    for name in ("torch", "transformers", "sentence-transformers", "tokenizers", "sentencepiece"):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed, {}


def token_ids(folder, texts, pairs=None, max_length=None, special_tokens=True, use_fast=True):
    """Return ids and types of texts or pairs, row after row, and their lengths, as the settings say."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=use_fast)
    settings = {"truncation": max_length is not None, "max_length": max_length}
    settings.update(
        add_special_tokens=special_tokens, return_token_type_ids=True, return_attention_mask=False
    )
    encoded = tokenizer(texts, pairs, **settings) if texts else {"input_ids": [], "token_type_ids": []}
    ids, types = (
        np.array([number for row in encoded[key] for number in row], np.int32)
        for key in ("input_ids", "token_type_ids")
    )
    lengths = np.array(list(map(len, encoded["input_ids"])), np.int64)
    return type(tokenizer).__name__, {"ids": ids, "types": types, "lengths": lengths}


def outputs(folder, texts=None, pairs=None, kind="AutoModel", ids=None, types=None, max_length=None):
    """Return what a model says of texts or pairs, cut by its own tokenizer, or of int ``ids`` and ``types``.

    The arrays are input_ids, attention_mask, and of its outputs those that it has: last_hidden_state,
    pooler_output, logits, prediction_logits, seq_relationship_logits. The result names missing weights.
    """
    import torch
    import transformers

    model, loading = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    if ids is not None:
        inputs = {"input_ids": torch.tensor(ids), "token_type_ids": torch.tensor(types)}
        inputs["attention_mask"] = (inputs["input_ids"] != model.config.pad_token_id).long()
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        settings = {"truncation": max_length is not None, "max_length": max_length}
        inputs = dict(tokenizer(texts, pairs, padding=True, return_tensors="pt", **settings))
    if getattr(model.config, "type_vocab_size", 0) < 2:  # DistilBERT has none
        inputs.pop("token_type_ids", None)
    with torch.no_grad():
        output = model.eval()(**inputs, output_hidden_states=True)
    names = ("last_hidden_state", "pooler_output", "logits", "prediction_logits", "seq_relationship_logits")
    arrays = {name: output[name].numpy() for name in names if output.get(name) is not None}
    arrays.setdefault("last_hidden_state", output.hidden_states[-1].numpy())
    arrays.update({name: inputs[name].numpy() for name in ("input_ids", "attention_mask")})
    return {"missing": sorted(loading["missing_keys"]), "class": type(model).__name__}, arrays


def vectors(folder, texts, prompt_name=None, prompt=None, method="encode", batch_size=32, settings=None):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", **(settings or {}))
    arguments = {"prompt_name": prompt_name, "prompt": prompt, "batch_size": batch_size}
    encoded = getattr(model, method)(texts, show_progress_bar=False, **arguments)
    result = {"max_seq_length": model.max_seq_length, "prompts": model.prompts}
    result.update(default_prompt_name=model.default_prompt_name, similarity=str(model.similarity_fn_name))
    return result, {"vectors": encoded, "similarities": model.similarity(encoded, encoded).numpy()}


def scores(folder, pairs, settings=None, **arguments):
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(folder), device="cpu", **(settings or {}))
    predicted = model.predict([tuple(pair) for pair in pairs], show_progress_bar=False, **arguments)
    return {"num_labels": model.num_labels, "max_length": model.max_length}, {"scores": np.asarray(predicted)}


def loss(name, vectors, labels=None, scale=20.0):
    """Return a loss of sentence-transformers of columns of vectors [columns, N, D], and their gradient."""
    import torch
    from sentence_transformers import util
    from sentence_transformers.sentence_transformer import losses

    columns = [torch.tensor(column, requires_grad=True) for column in vectors]
    if name in ("MarginMSELoss", "DistillKLDivLoss"):
        settings = {"similarity_fct": lambda left, right: util.pairwise_cos_sim(left, right) * scale}
    else:
        settings = {"scale": scale}
    labels = None if labels is None else torch.tensor(labels)
    found = getattr(losses, name)(None, **settings).compute_loss_from_embeddings(columns, labels)
    found.backward()
    return found.item(), {"gradient": np.stack([column.grad.numpy() for column in columns])}


def add_head(folder, to, seed):
    """Write the encoder in ``folder`` with a new head of two classes, and its tokenizer, into ``to``."""
    import torch
    import transformers

    torch.manual_seed(seed)
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    load(folder, num_labels=2).save_pretrained(to)
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(to)


REQUESTS = {one.__name__: one for one in (versions, token_ids, outputs, vectors, scores, loss, add_head)}
REQUESTS.update(make=tiny_models.make_model, make_sentence=tiny_models.make_sentence_folder)


def serve(requests, answers):
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for line in requests:
        request = json.loads(line)
        do, out = request.pop("do"), request.pop("out")
        try:
            result, arrays = REQUESTS[do](**request) or (None, {})
            np.savez(out, **arrays)
            answer = {"result": result}
        except Exception as error:  # what a library raises is its answer
            answer = {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    own, sys.stdout = sys.stdout, sys.stderr  # libraries print as they like
    serve(sys.stdin, own)
