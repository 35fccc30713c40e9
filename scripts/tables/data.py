"""The speed and the memory of the data tools."""

import json
import os
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, Tuple

import numpy as np

from data_tools import dataset_utils
from data_tools.corpus.format import Corpus
from data_tools.corpus.writer import CorpusWriter
from data_tools.create_pretraining_data import CreateConfig, create_pretraining_data
from data_tools.ernie_dataset import ErnieDataset, masking_rule
from data_tools.files.errors import InputError
from data_tools.make_sample import SampleConfig, make_sample
from data_tools.samples import sample_map
from data_tools.samples.masking import MaskingFlags
from data_tools.text.text_files import list_inputs
from data_tools.text.wordpiece import WordPiece
from data_tools.text.words import segmenter
from data_tools.trans_to_json import documents_of
from tables import Row, seconds_of

WORDS = {"chinese": True, "cn_whole_word_segment": True}
TOKENS_PER_SENTENCE, SENTENCES_PER_DOCUMENT = 25, 10
CUT = (509, 2**64 // 10, 7, 2)  # arguments of cut_documents: target length, 1 in 10 short, stream, sentences
MEMORY_MEGABYTES, MEMORY_A_WORKER, SAMPLE_DOCUMENTS = 400, 150, 20_000
PREFIX, JOINED = "out", "joined"  # corpora of the measured text
MAX_SEQ_LEN, SAMPLES = 512, 5000
POLL_SECONDS = 0.02


def measured(config, folder: Path) -> Iterator[Row]:
    """Yield the rows of the table."""
    yield Row("what", f"median of {config.runs}", "goal")
    texts = _texts(config, folder)
    yield from _speed_of_ids(config, folder, texts)
    yield from _masked_samples(config, folder)
    yield from _speed_of_the_index_map(config)
    yield _opening(config, folder)
    if config.megabytes:
        yield _peak_memory(config, folder, texts)


def _texts(config, folder: Path) -> List[str]:
    source = config.text_path
    if not source:
        make_sample(SampleConfig(output_dir=str(folder / "sample"), documents=SAMPLE_DOCUMENTS))
        source = str(folder / "sample" / "corpus.txt")
    files = list_inputs(source, (".txt",), any_file=True)
    return ["\n".join(lines) for path in files for lines, _ in documents_of(path, "")]


def _speed_of_ids(config, folder: Path, texts: List[str]) -> Iterator[Row]:
    documents = list(_repeated(texts, config.speed_megabytes))
    megabytes = sum(len(text.encode("utf-8")) for text in documents) / 1e6
    cut = segmenter("rjieba")
    plain = _write_documents(folder / "plain.jsonl", documents)
    split = _write_documents(folder / "split.jsonl", (" ".join(cut(text)) for text in documents))
    settings = {"output_prefix": str(folder / PREFIX), "vocab_file": config.vocab_file, "overwrite": True}

    def speed(path: Path, **flags) -> str:
        create = CreateConfig(input_path=str(path), **{**settings, **flags})
        return seconds_of(lambda: create_pretraining_data(create), config.runs).rate(megabytes, ".1f")

    yield Row("sentences, words (rjieba) and ids, end to end: MB/s per worker", speed(plain, **WORDS), "5")
    joined = {"output_prefix": str(folder / JOINED), "join_documents": "short"}
    yield Row("the same, short documents joined: MB/s per worker", speed(plain, **joined, **WORDS))
    others = {"output_prefix": str(folder / "other")}
    yield Row("ids only, words given: MB/s", speed(split, cn_splited=True, **others, **WORDS), "8")
    yield Row("ids only, no words: MB/s", speed(plain, chinese=True, **others))


def _masked_samples(config, folder: Path) -> Iterator[Row]:
    """Measure whole samples, cut and masked, of the corpus as it is and joined: then nearly all are full."""
    datasets = {prefix: _dataset(config, folder / prefix) for prefix in (PREFIX, JOINED)}
    for prefix, name in ((PREFIX, "as they are"), (JOINED, "joined when short")):
        lengths = [len(datasets[prefix].text(number).tokens) for number in range(SAMPLES)]
        share = 1 - sum(lengths) / (len(lengths) * MAX_SEQ_LEN)
        yield Row(f"documents {name}: padding share at {MAX_SEQ_LEN}", f"{share:.1%}")
    hides = {"compiled": dataset_utils.compiled_hide_words, "Python": None}
    for name, hide in hides.items() if dataset_utils.compiled_hide_words else [("Python", None)]:
        dataset_utils.compiled_hide_words = hide
        numbers = range(SAMPLES if hide else SAMPLES // 10)
        dataset = datasets[JOINED]
        seconds = seconds_of(lambda d=dataset, ns=numbers: [d[number] for number in ns], config.runs)
        what = f"masked samples at {MAX_SEQ_LEN}, {name}: samples/s"
        yield Row(what, seconds.rate(len(numbers), ",.0f"), "20,000" if hide else "")


def _dataset(config, prefix: Path) -> ErnieDataset:
    """Open the data set at ``prefix`` with every option at its default."""
    corpus, masking = Corpus(prefix), MaskingFlags()
    rows = sample_map.build_sample_map(
        corpus.docs,
        corpus.lens,
        range(corpus.num_documents),
        num_samples=SAMPLES,
        seed=1,
        **masking.map_settings(MAX_SEQ_LEN),
    )
    rule = masking_rule(WordPiece.from_file(config.vocab_file), **masking.rule_settings())
    return ErnieDataset(corpus, rows, rule, seed=1)


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


def _speed_of_the_index_map(config) -> Iterator[Row]:
    lens, docs = _made_up_documents(config.million_tokens * 10**6)
    some = docs[: len(docs) // 20 + 2]
    settings = {"target_length": CUT[0], "short_seq_prob": 0.1, "seed": 1, "min_sentences": 2}

    def rows_per_second(build: Callable[[], np.ndarray]) -> str:
        return seconds_of(build, config.runs).rate(len(build()), ",.0f")

    def shuffled() -> np.ndarray:
        """Build one epoch: every document gives at least one row."""
        documents = range(len(docs) - 1)
        return sample_map.build_sample_map(docs, lens, documents, num_samples=len(documents), **settings)

    if sample_map._helpers:
        compiled = rows_per_second(lambda: sample_map._helpers.cut_documents(docs, lens, *CUT))
        yield Row("index map, compiled: rows/s", compiled, "5,000,000")
        yield Row("index map, compiled, with the shuffle: rows/s", rows_per_second(shuffled), "5,000,000")
    twin = rows_per_second(lambda: sample_map.cut_documents(some, lens, *CUT))
    yield Row("index map, Python: rows/s", twin)


def _made_up_documents(num_tokens: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return lens int32 and docs int64 of documents of ten sentences of 1 to 49 tokens."""
    num_documents = max(1, num_tokens // (TOKENS_PER_SENTENCE * SENTENCES_PER_DOCUMENT))
    num_sentences = num_documents * SENTENCES_PER_DOCUMENT
    lens = np.random.default_rng(1).integers(1, 2 * TOKENS_PER_SENTENCE, num_sentences, dtype=np.int32)
    return lens, np.arange(0, num_sentences + 1, SENTENCES_PER_DOCUMENT)


def _opening(config, folder: Path) -> Row:
    """Measure opening a large corpus, whose files are still in the page cache."""
    prefix, lens = folder / "large", _made_up_documents(config.million_tokens * 10**6)[0]
    tokenizer = WordPiece.from_file(config.vocab_file)
    with CorpusWriter(prefix, vocab_size=tokenizer.vocab_size) as writer:
        for part in np.array_split(lens.reshape(-1, SENTENCES_PER_DOCUMENT), 1 + len(lens) // 10**6):
            ids = np.arange(part.sum()) % (tokenizer.vocab_size - 200) + 100
            writer.extend(ids, part.ravel(), np.full(len(part), SENTENCES_PER_DOCUMENT))
    rule = masking_rule(tokenizer)

    def first_sample():
        return ErnieDataset(Corpus(prefix), np.array([[0, SENTENCES_PER_DOCUMENT, 509]]), rule, seed=1)[0]

    seconds = seconds_of(first_sample, config.runs)
    what = f"opening {int(lens.sum()) / 1e6:.0f} million tokens, first sample: s"
    return Row(what, f"{seconds.clock:.2f} ({seconds.processor:.2f})", "0.2 at most")


def _peak_memory(config, folder: Path, texts: List[str]) -> Row:
    source = _write_documents(folder / "memory.jsonl", _repeated(texts, config.megabytes))
    flags = {"input_path": source, "output_prefix": folder / "memory", "vocab_file": config.vocab_file}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "data_tools.create_pretraining_data", *words, "--chinese"]
    started = time.monotonic()
    with subprocess.Popen([*command, "--cn_whole_word_segment", "--workers", str(config.workers)]) as run:
        peak = 0
        while run.poll() is None:
            peak = max(peak, sum(map(_resident_bytes, [run.pid, *_descendants(run.pid)])))
            time.sleep(POLL_SECONDS)
    if run.returncode:
        raise InputError(f"create_pretraining_data ended with code {run.returncode}; see its message above")
    speed = config.megabytes / (time.monotonic() - started)
    what = f"peak memory for {config.megabytes} MB, {config.workers} workers ({speed:.1f} MB/s): MB"
    return Row(what, f"{peak / 1e6:.0f}", f"{MEMORY_MEGABYTES + MEMORY_A_WORKER * config.workers} at most")


def _descendants(pid: int) -> List[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *_descendants(child))]


def _resident_bytes(pid: int) -> int:
    """Return the resident bytes of a process, pages that it shares included; 0 for one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
