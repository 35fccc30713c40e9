"""Tiny models as real libraries write them: weights, tokenizer, module files; run by a peer's Python.

The weights are random, but far from 0 and 1 where a new model has those, so that no difference hides.
"""

import json
import re
import shutil
import unicodedata
from pathlib import Path

from other_libraries.texts import WITH_SYMBOLS, sentences

# The classes, sizes and settings of the families, and the rows of compare_families.py.
MODELS = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
WORD_PIECES, UNIGRAM, BYTES = "word pieces", "unigram", "byte-level BPE"
SENTENCE_PIECE = "sentencepiece.bpe.model"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_model(folder, family, kind="Model", seed=0, lower_case=True, keep=(), tokenizer="", **settings):
    """Write a model of ``family`` with a tokenizer, as this version of transformers saves both.

    ``kind``: the end of its class, ForSequenceClassification for example. ``keep``: names of tokenizer files
    that this version does not write and an earlier one did, vocab.txt or sentencepiece.bpe.model.
    ``tokenizer``: WORD_PIECES, UNIGRAM or BYTES, if not the usual one. ``settings``: of its config.
    """
    import torch
    import transformers

    folder = Path(folder)
    usual = UNIGRAM if family == "xlm-roberta" else WORD_PIECES
    size = make_tokenizer(folder, tokenizer or usual, lower_case, keep)
    model_class = getattr(transformers, f"{MODELS['classes'][family]}{kind}")
    saved = transformers.AutoTokenizer.from_pretrained(folder)
    ids = {"pad_token_id": saved.pad_token_id}
    if family in ("roberta", "xlm-roberta"):
        ids.update(bos_token_id=saved.cls_token_id, eos_token_id=saved.sep_token_id)
    shape = {**MODELS["sizes"], **MODELS["of_family"].get(family, {}), "vocab_size": size, **ids, **settings}
    without = MODELS["without"].get(family, ())
    shape = {key: value for key, value in shape.items() if key not in without}
    if "num_labels" not in shape:
        shape["id2label"] = {0: "other", 1: "same", 2: "unsure"}
    torch.manual_seed(seed)
    model = model_class(model_class.config_class(**shape)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 0.5, 0.3)
    model.save_pretrained(folder)


def make_tokenizer(folder, kind, lower_case=True, keep=()):
    """Write a trained tokenizer as this version of transformers saves it, and return its number of tokens."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    with_parts = folder / "parts"
    with_parts.mkdir()
    if kind == UNIGRAM:
        import sentencepiece

        with open(with_parts / SENTENCE_PIECE, "wb") as model:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter([*sentences(), *WITH_SYMBOLS]), model_writer=model, vocab_size=400,
                model_type="unigram", hard_vocab_limit=False, character_coverage=1.0, num_threads=1,
                minloglevel=2,
            )  # fmt: skip
        made, settings = transformers.XLMRobertaTokenizerFast, {}
    elif kind == BYTES:
        from tokenizers.implementations import ByteLevelBPETokenizer

        trained, specials = ByteLevelBPETokenizer(), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        trained.train_from_iterator(sentences(), vocab_size=500, special_tokens=specials, show_progress=False)
        trained.save_model(str(with_parts))
        made, settings = transformers.RobertaTokenizerFast, {}
    else:
        write_word_pieces(with_parts / "vocab.txt", lower_case)
        made, settings = transformers.BertTokenizerFast, {"do_lower_case": lower_case}
    tokenizer = made.from_pretrained(with_parts, model_max_length=64, **settings)
    tokenizer.save_pretrained(folder)
    for name in keep:
        shutil.copyfile(with_parts / name, folder / name)
    shutil.rmtree(with_parts)
    return len(tokenizer)


def write_word_pieces(file, lower_case):
    """Write a vocabulary: the signs of `texts`, each with its ## twin as in Chinese BERTs, words."""
    text = "\n".join([*sentences(), *WITH_SYMBOLS])
    text = text.lower() if lower_case else text
    signs = sorted(set("".join(unicodedata.normalize("NFD", text).split())))
    words = sorted(set(re.findall("[a-z]{2,}", text)))
    tokens = [*SPECIALS, *signs, *(f"##{sign}" for sign in signs)]
    tokens += [*words[::2], *(f"##{word}" for word in words[::3])]
    file.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")


def make_sentence_folder(folder, encoder, modules, max_seq_length=None, **settings):
    """Write a folder of sentence-transformers round the model in the folder ``encoder``.

    ``modules``: those after the encoder, [kind, settings], as ["Pooling", {"pooling_mode": "cls"}],
    ["Dense", {"out_features": 8}] or ["Normalize", {}]. ``settings``: of SentenceTransformer, as prompts.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules as made

    chain = [made.Transformer(str(encoder), max_seq_length=max_seq_length)]
    width = chain[0].get_embedding_dimension()
    torch.manual_seed(1)
    for kind, of_module in modules:
        of_module = dict(of_module)
        if kind == "Pooling":
            chain.append(made.Pooling(width, **of_module))
            width = chain[-1].get_embedding_dimension()
        elif kind == "Dense":
            activation = of_module.pop("activation", "Tanh")
            chain.append(made.Dense(width, activation_function=getattr(torch.nn, activation)(), **of_module))
            width = of_module["out_features"]
        else:
            chain.append(getattr(made, kind)(**of_module))
    SentenceTransformer(modules=chain, device="cpu", **settings).save(str(folder))
