"""A tiny ERNIE and a tiny corpus for the tests of pretraining."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from places import SCRIPTS
from run_files import events as events

from data_tools.corpus.writer import CorpusWriter
from data_tools.text.wordpiece import WordPiece
from ernie_pair.kernels.library import FOLDER, open_kernels
from ernie_pair.models.spec import parse_spec

CHARACTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
VOCAB = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", *CHARACTERS, *(f"##{c}" for c in CHARACTERS), "[UNK]"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SIZES.update(max_position_embeddings=40, type_vocab_size=2)


STATIC = SCRIPTS / "run_pretrain_static.py"
FLAGS = """
    from_scratch true split 80,10,10 max_seq_len 32 micro_batch_size 4 max_steps 6 max_lr 0.01 warmup_rate 0.1
    logging_freq 1 eval_freq 3 eval_iters 2 checkpoint_steps 2 save_steps 1000 num_workers 0 device cpu
""".split()


def has_bf16() -> bool:
    """Whether the fused kernels offer bf16 here; a function, for it loads Paddle."""
    return open_kernels().has_bf16


def level_here() -> str:
    """The level of the fused kernels here; a function as above."""
    return open_kernels().level


needs_kernels = pytest.mark.skipif(
    not list(FOLDER.glob("_fused*.so")) or "avx2" not in Path("/proc/cpuinfo").read_text(),
    reason="the fused kernels are not built, or not for this processor",
)


def write_model(folder: Path, **changes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "ernie", "vocab_size": len(VOCAB), "pad_token_id": 0, **SIZES, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in VOCAB), encoding="utf-8")
    return folder


def write_corpus(folder: Path, model: Path, documents: int = 60, seed: int = 0, tokenizer=None) -> Path:
    """Documents of 1 to 6 sentences in which each character is followed by the next of the list."""
    rng, tokenizer = np.random.default_rng(seed), tokenizer or WordPiece.from_file(model / "vocab.txt")
    with CorpusWriter(
        folder / "text", vocab_size=tokenizer.vocab_size, about={"vocab_sha256": tokenizer.sha256}
    ) as writer:
        for _ in range(documents):
            sentences = []
            for _ in range(rng.integers(1, 7)):
                start, length = rng.integers(len(CHARACTERS)), rng.integers(3, 12)
                text = "".join(CHARACTERS[(start + i) % len(CHARACTERS)] for i in range(length))
                sentences.append(tokenizer.encode(text))
            writer.add(sentences)
    return folder


def flags(model: Path, data: Path, output: Path, **changes):
    """The words of a command line; --from_scratch unless told otherwise."""
    places = {"model_name_or_path": model, "input_dir": data, "output_dir": output}
    values = {**places, **dict(zip(FLAGS[::2], FLAGS[1::2])), **changes}
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def words_of(world: Path, output: str, processes: int, **changes):
    """The script and its flags in the folder of the fixture; data parallel unless told otherwise."""
    layout = {"dp_degree": processes, **changes}
    return [STATIC, *flags(world / "model", world / "data", world / output, **layout)]


def pretrain(folder: Path, output: Path, code: int = 0, **changes) -> str:
    """Pretrain ``folder``/model on ``folder``/data in a process; it ends with ``code``; return its stderr."""
    words = [STATIC, *flags(folder / "model", folder / "data", output, **changes)]
    done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stderr
    return done.stderr


SPEC = parse_spec({"vocab_size": len(VOCAB), "max_position_embeddings": 40, "type_vocab_size": 2})


def opened(world, input_dir=None, spec=None, **changes):
    from ernie_pair.core.cli.cli import parse_config
    from ernie_pair.pretraining.config.pretrain_config import PretrainConfig
    from ernie_pair.pretraining.data import open_pretrain_data
    from ernie_pair.runtime.processes.world import World

    words = flags(world / "model", input_dir or world / "a", world / "output", **changes)
    tokenizer = WordPiece.from_file(world / "model" / "vocab.txt")
    return open_pretrain_data(
        parse_config(PretrainConfig, list(map(str, words))), World(0, 1), tokenizer, spec or SPEC
    )
