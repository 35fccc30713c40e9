"""The speed and the memory of the data tools."""

import contextlib
import json
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Iterable, Iterator, List

import numpy as np
import psutil

from data_tools import dataset_utils
from data_tools.corpus.format import Corpus
from data_tools.corpus.writer import CorpusWriter
from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.ernie_dataset import ErnieDataset, masking_rule
from data_tools.make_sample import SampleConfig, make_sample
from data_tools.samples import sample_map
from data_tools.samples.masking import MaskingFlags
from data_tools.text.text_files import list_inputs
from data_tools.text.wordpiece import WordPiece
from data_tools.text.words import segmenter
from data_tools.trans_to_json import documents_of
from ernie_pair.core.errors import InputError
from tables import Row, seconds_of

WORDS = {"chinese": True, "cn_whole_word_segment": True}
TOKENS_PER_SENTENCE, SENTENCES_PER_DOCUMENT = 25, 10
CUT = (509, 2**64 // 10, 7, 2)  # arguments of cut_documents: target length, 1 in 10 short, stream, sentences
MEMORY_MEGABYTES, MEMORY_A_WORKER, SAMPLE_DOCUMENTS = 400, 150, 20_000
PREFIX, JOINED = "out", "joined"  # corpora of the measured text
MAX_SEQ_LEN, SAMPLES = 512, 5000
POLL_SECONDS = 0.02


def measured(config, folder: Path) -> Iterator[Row]:
    yield Row("what", f"median of {config.runs}", "goal")
    source = config.text_path
    if not source:
        make_sample(SampleConfig(output_dir=str(folder / "sample"), documents=SAMPLE_DOCUMENTS))
        source = str(folder / "sample" / "corpus.txt")
    files = list_inputs(source, (".txt",))
    texts = ["\n".join(lines) for path in files for lines, _ in documents_of(path, "")]
    tokenizer = WordPiece.from_file(config.vocab_file)
    num_documents = max(1, config.million_tokens * 10**6 // (TOKENS_PER_SENTENCE * SENTENCES_PER_DOCUMENT))
    num_sentences = num_documents * SENTENCES_PER_DOCUMENT
    lens = np.random.default_rng(1).integers(1, 2 * TOKENS_PER_SENTENCE, num_sentences, dtype=np.int32)
    docs = np.arange(0, num_sentences + 1, SENTENCES_PER_DOCUMENT)  # int64
    yield from _speed_of_ids(config, folder, texts)
    yield from _masked_samples(config, folder, tokenizer)
    yield from _speed_of_the_index_map(config, lens, docs)
    yield _opening(config, folder / "large", tokenizer, lens)
    if config.megabytes:
        yield _peak_memory(config, folder, texts)


def _speed_of_ids(config, folder: Path, texts: List[str]) -> Iterator[Row]:
    documents = list(_repeated(texts, config.speed_megabytes))
    megabytes = sum(len(text.encode("utf-8")) for text in documents) / 1e6
    cut = segmenter("rjieba")
    plain = _write_documents(folder / "plain.jsonl", documents)
    split = _write_documents(folder / "split.jsonl", (" ".join(cut(text)) for text in documents))

    def speed(path: Path, prefix: str, **flags) -> str:
        places = {"input_path": str(path), "output_prefix": str(folder / prefix), "overwrite": True}
        create = CreateConfig(**places, vocab_file=config.vocab_file, **flags)
        return seconds_of(lambda: create_pretraining_data(create), config.runs).rate(megabytes, ".1f")

    whole = "sentences, words (rjieba) and ids, end to end: MB/s per worker"
    yield Row(whole, speed(plain, PREFIX, **WORDS), "5")
    joined = speed(plain, JOINED, join_documents="short", **WORDS)
    yield Row("the same, short documents joined: MB/s per worker", joined)
    yield Row("ids only, words given: MB/s", speed(split, "other", cn_splited=True, **WORDS), "8")
    yield Row("ids only, no words: MB/s", speed(plain, "other", chinese=True))


def _masked_samples(config, folder: Path, tokenizer: WordPiece) -> Iterator[Row]:
    """Measure whole samples, cut and masked, of the corpus as it is and joined: then nearly all are full."""
    masking = MaskingFlags()  # every option at its default
    rule, settings = masking_rule(tokenizer, **masking.rule_settings()), masking.map_settings(MAX_SEQ_LEN)
    for prefix, name in ((PREFIX, "as they are"), (JOINED, "joined when short")):
        corpus = Corpus(folder / prefix)
        rows = sample_map.build_sample_map(
            corpus.docs, corpus.lens, range(corpus.num_documents), num_samples=SAMPLES, seed=1, **settings
        )
        dataset = ErnieDataset(corpus, rows, rule, seed=1)
        lengths = [len(dataset.text(number).tokens) for number in range(SAMPLES)]
        share = 1 - sum(lengths) / (len(lengths) * MAX_SEQ_LEN)
        yield Row(f"documents {name}: padding share at {MAX_SEQ_LEN}", f"{share:.1%}")
    hides = {"compiled": dataset_utils.compiled_hide_words, "Python": None}
    for name, hide in hides.items() if dataset_utils.compiled_hide_words else [("Python", None)]:
        dataset_utils.compiled_hide_words = hide
        numbers = range(SAMPLES if hide else SAMPLES // 10)
        seconds = seconds_of(lambda d=dataset, ns=numbers: [d[number] for number in ns], config.runs)
        what = f"masked samples at {MAX_SEQ_LEN}, {name}: samples/s"
        yield Row(what, seconds.rate(len(numbers), ",.0f"), "20,000" if hide else "")


def _repeated(texts: List[str], megabytes: float) -> Iterator[str]:
    """Yield the texts in turn, again and again, until there are so many MB of them."""
    num_bytes = 0
    for text in cycle(texts):
        if num_bytes >= megabytes * 1e6:
            return
        num_bytes += len(text.encode("utf-8"))
        yield text


def _write_documents(path: Path, texts: Iterable[str]) -> Path:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    return path


def _speed_of_the_index_map(config, lens: np.ndarray, docs: np.ndarray) -> Iterator[Row]:
    some, documents = docs[: len(docs) // 20 + 2], range(len(docs) - 1)
    settings = {"target_length": CUT[0], "short_seq_prob": 0.1, "seed": 1, "min_sentences": 2}
    # Shuffled is one epoch: every document gives at least one row.
    builds = {
        "index map, compiled": lambda: sample_map._helpers.cut_documents(docs, lens, *CUT),
        "index map, compiled, with the shuffle": lambda: sample_map.build_sample_map(
            docs, lens, documents, num_samples=len(documents), **settings
        ),
        "index map, Python": lambda: sample_map.cut_documents(some, lens, *CUT),
    }
    for what, build in builds.items():
        if "compiled" not in what or sample_map._helpers:
            speed = seconds_of(build, config.runs).rate(len(build()), ",.0f")
            yield Row(f"{what}: rows/s", speed, "5,000,000" if "compiled" in what else "")


def _opening(config, prefix: Path, tokenizer: WordPiece, lens: np.ndarray) -> Row:
    """Measure opening a large corpus, whose files are still in the page cache."""
    with CorpusWriter(prefix, vocab_size=tokenizer.vocab_size) as writer:
        for part in np.array_split(lens.reshape(-1, SENTENCES_PER_DOCUMENT), 1 + len(lens) // 10**6):
            ids = np.arange(part.sum()) % (tokenizer.vocab_size - 200) + 100
            writer.extend(ids, part.ravel(), np.full(len(part), SENTENCES_PER_DOCUMENT))
    rule, rows = masking_rule(tokenizer), np.array([[0, SENTENCES_PER_DOCUMENT, 509]])
    seconds = seconds_of(lambda: ErnieDataset(Corpus(prefix), rows, rule, seed=1)[0], config.runs)
    what = f"opening {int(lens.sum()) / 1e6:.0f} million tokens, first sample: s"
    return Row(what, f"{seconds.clock:.2f} ({seconds.processor:.2f})", "0.2 at most")


def _peak_memory(config, folder: Path, texts: List[str]) -> Row:
    """Measure the resident bytes of a command and its workers, pages that they share included."""
    source = _write_documents(folder / "memory.jsonl", _repeated(texts, config.megabytes))
    flags = {"input_path": source, "output_prefix": folder / "memory", "vocab_file": config.vocab_file}
    words = [f"--{name}={value}" for name, value in {**flags, **WORDS, "workers": config.workers}.items()]
    started = time.monotonic()
    with psutil.Popen([sys.executable, "-m", "data_tools.create_pretraining_data", *words]) as run:
        peak = 0
        while run.poll() is None:
            with contextlib.suppress(psutil.Error):  # one may end meanwhile
                processes = [run, *run.children(recursive=True)]
                peak = max(peak, sum(each.memory_info().rss for each in processes))
            time.sleep(POLL_SECONDS)
    if run.returncode:
        raise InputError(f"create_pretraining_data ended with code {run.returncode}; see its message above")
    speed = config.megabytes / (time.monotonic() - started)
    what = f"peak memory for {config.megabytes} MB, {config.workers} workers ({speed:.1f} MB/s): MB"
    return Row(what, f"{peak / 1e6:.0f}", f"{MEMORY_MEGABYTES + MEMORY_A_WORKER * config.workers} at most")
