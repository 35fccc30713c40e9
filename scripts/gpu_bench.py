"""Measure exported models on a GPU, beside torch where it is installed.

    python scripts/gpu_bench.py make --pairs lcqmc.tsv --output_file bench.tar.xz    here, with Paddle
    python scripts/gpu_bench.py run --input_file bench.tar.xz --output_dir measured  there, without it

`make` exports a classifier and an encoder of the sizes of ERNIE base, and an encoder of 4 x 312, for GPUs.
Their weights are random numbers that repeat, so that an archive of 2 GB takes a few MB. `run` unpacks them,
prints a table and writes gpu_bench.json; what fails is a row that says why. --device cpu --quick shows on a
small part that the script itself runs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import time
import traceback
from functools import partial
from pathlib import Path

import numpy as np

PERIOD = 65_521  # a prime: rows of no width begin alike
BASE = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
SMALL = {"num_hidden_layers": 4, "hidden_size": 312, "num_attention_heads": 12, "intermediate_size": 1200}
BATCH_TOKENS, CALLS, TEXTS, CLIENTS = 32_768, 500, 200_000, 64
LENGTHS = {"8 to 400 tokens": (8, 400, 2048), "128 tokens": (128, 128, 4096), "512 tokens": (512, 512, 512)}


def make(given: argparse.Namespace) -> None:
    """Write the archive: classifier/, encoder/, small/ as `ernie-pair export` writes them, and pairs.tsv."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as name:
        folder = Path(name)
        lines = Path(given.pairs).read_text(encoding="utf-8").splitlines()
        pairs = ["\t".join(line.split("\t")[:2]) for line in lines if line.count("\t") > 1][1:]
        for name, part in (("pairs.tsv", pairs), ("few.tsv", pairs[:64])):
            (folder / name).write_text("\n".join(["text_a\ttext_b", *part, ""]), encoding="utf-8")
        for kind, sizes in (("classifier", BASE), ("encoder", BASE), ("small", SMALL)):
            _export(folder, kind, sizes, Path(given.vocab_file))
        with tarfile.open(given.output_file, "x:xz", preset=1) as archive:
            for part in ("classifier-shipped", "encoder-shipped", "small-shipped", "pairs.tsv"):
                archive.add(folder / part, part)


def _export(folder: Path, kind: str, sizes: dict[str, int], vocab_file: Path) -> None:
    from ernie_pair.deployment.export_pair import ExportConfig, export_pair
    from ernie_pair.embeddings.embed_config import ExportEmbeddingConfig
    from ernie_pair.evaluation.embeddings.export_embedding import export_embedding
    from ernie_pair.models.embedding_json import EmbeddingSettings
    from ernie_pair.models.networks.classifier import build_classifier
    from ernie_pair.models.networks.text_encoder import build_text_encoder
    from ernie_pair.models.source import open_model

    words = [sys.executable, "-m", "ernie_pair", "new-model", "--vocab_file", str(vocab_file)]
    words += [f"--{name}={value}" for name, value in sizes.items()]
    subprocess.run([*words, "--output_dir", str(folder / f"{kind}-new")], check=True)
    source = open_model(str(folder / f"{kind}-new"), from_scratch=True)
    is_pairs, trained, shipped = kind == "classifier", folder / f"{kind}-trained", folder / f"{kind}-shipped"
    model = build_classifier(source, 0, 0.0) if is_pairs else build_text_encoder(source, 0, 0.0)
    numbers = np.random.default_rng(0).normal(0, 0.02, PERIOD).astype(np.float16).astype(np.float32)
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.set_value(np.resize(numbers, weight.shape))
    trained.mkdir()
    if is_pairs:
        model.write(trained, source.vocab_file)
        few = str(folder / "few.tsv")
        export_pair(ExportConfig(str(trained), str(shipped), "onnx-gpu", 128, quantize_file=few))
        return
    width = sizes["hidden_size"]
    model.write_embedding(trained, source.vocab_file, EmbeddingSettings("mean", width, (width,), 128, 0.05))
    export_embedding(ExportEmbeddingConfig(str(trained), str(shipped), format="onnx-gpu"))


class Bench:
    """The unpacked archive on ``device``, and the rows of the table, {what: figures}."""

    def __init__(self, folder: Path, device: str, quick: bool):
        self.folder, self.device, self.quick, self.rows = folder, device, quick, {}
        lines = (folder / "pairs.tsv").read_text(encoding="utf-8").splitlines()[1:]
        self.pairs = [tuple(line.split("\t")) for line in lines]

    def predictor(self, backend: str = "auto", device: str = ""):
        from ernie_pair.inference.predictor import PairPredictor

        return PairPredictor(self.folder / "classifier-shipped", backend, device=device or self.device)

    def measure(self, name: str, ask) -> None:
        """Keep what ``ask`` returns as the row ``name``, or why it failed."""
        try:
            self.rows[name] = ask()
        except Exception as error:  # of torch or of ONNX Runtime: the other rows are still measured
            traceback.print_exc()
            self.rows[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print(f"{name:<44}{json.dumps(self.rows[name])}", flush=True)

    def lengths(self) -> dict[str, np.ndarray]:
        """Return the tokens of the rows of each set, LCQMC's pairs first."""
        rng, part = np.random.default_rng(0), 64 if self.quick else None
        of_pairs = np.array([min(len(a) + len(b) + 3, 128) for a, b in self.pairs[: part or 100_000]])
        made = {name: rng.integers(low, high + 1, part or n) for name, (low, high, n) in LENGTHS.items()}
        if self.quick:
            made = {name: np.minimum(lengths, 128) for name, lengths in made.items()}
        return {"pairs of LCQMC": of_pairs, **made}


def batches_of(lengths: np.ndarray) -> list[np.ndarray]:
    """Return ids of random tokens, int64 [B, S] of up to BATCH_TOKENS each, of rows of similar length."""
    from ernie_pair.inference.token_rows import BatchRules, evaluation_batches

    rng, found = np.random.default_rng(1), []
    for picked in evaluation_batches(lengths, 0, BatchRules(BATCH_TOKENS, rows=BATCH_TOKENS)):
        inside = np.arange(lengths[picked].max()) < lengths[picked][:, None]
        found.append(np.where(inside, rng.integers(1000, 17_000, inside.shape), 0))
    return found


def rates(ask, batches: list[np.ndarray]) -> dict[str, float]:
    """Return rows and tokens per second of ``ask``, the median of three rounds after one."""
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        for ids in batches:
            ask(ids)
        seconds.append(time.perf_counter() - began)
    usual = statistics.median(seconds[1:])
    rows, tokens = sum(len(ids) for ids in batches), sum(int((ids != 0).sum()) for ids in batches)
    return {"rows/s": round(rows / usual), "tokens/s": round(tokens / usual)}


def latency(ask) -> dict[str, float]:
    """Return the milliseconds of one row of 32 tokens."""
    ids, seconds = np.full((1, 32), 2000), []
    for _ in range(CALLS):
        began = time.perf_counter()
        ask(ids)
        seconds.append(1e3 * (time.perf_counter() - began))
    p50, p99 = np.percentile(seconds[50:], [50, 99])
    return {"p50 ms": round(float(p50), 3), "p99 ms": round(float(p99), 3)}


def torch_of(device: str, precision: str):
    """Return what asks a BERT of the same size in torch, its attention fused: logits float32 [B, 2]."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    kind = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    config = BertConfig(vocab_size=17_964, num_labels=2, attn_implementation="sdpa", **BASE)
    model = BertForSequenceClassification(config).eval().to("cuda" if device != "cpu" else "cpu", kind)

    @torch.inference_mode()
    def ask(ids: np.ndarray) -> np.ndarray:
        given = torch.from_numpy(ids).to(model.device)
        return model(given, attention_mask=(given != 0).long()).logits.float().cpu().numpy()

    return ask


def product_rate() -> dict[str, float]:
    """Return the 10^12 operations per second of a product of 8192 x 8192 in float16, by torch."""
    import torch

    one = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            one @ one
        torch.cuda.synchronize()
    return {"10^12/s": round(20 * 2 * 8192**3 / (time.perf_counter() - began) / 1e12, 1)}


def run(given: argparse.Namespace) -> None:
    """Unpack the archive into ``output_dir``, measure, and write gpu_bench.json there."""
    folder = Path(given.output_dir)
    folder.mkdir(parents=True)
    with tarfile.open(given.input_file) as archive:
        archive.extractall(folder, filter="data")
    bench = Bench(folder, given.device, given.quick)
    asks = {f"exported, {name}": bench.predictor(name).logits_of_ids for name in _backends(given.device)}
    asks = {name: lambda ids, ask=ask: ask(ids, np.zeros_like(ids)) for name, ask in asks.items()}
    for precision in ("fp32",) if given.device == "cpu" else ("fp16", "bf16"):
        try:
            asks[f"torch, {precision}"] = torch_of(given.device, precision)
        except ImportError as error:
            print(f"without torch: {error}", flush=True)
    for name, lengths in bench.lengths().items():
        batches = batches_of(np.asarray(lengths))
        for who, ask in asks.items():
            bench.measure(f"{name}, {who}", partial(rates, ask, batches))
    for who, ask in asks.items():
        bench.measure(f"one row of 32 tokens, {who}", partial(latency, ask))
    if given.device != "cpu":
        bench.measure("product in float16", product_rate)
    bench.measure("difference of probabilities from a CPU", partial(difference, bench))
    for kind in ("encoder", "small"):
        bench.measure(f"embed from a file, {kind}", partial(end_to_end, bench, kind))
    (folder / "gpu_bench.json").write_text(json.dumps(bench.rows, indent=1), encoding="utf-8")


def _backends(device: str) -> tuple[str, ...]:
    return ("onnx",) if device == "cpu" else ("onnx", "onnx-gpu")


def difference(bench: Bench) -> dict[str, float]:
    """Return the largest difference of a probability between the device and float32 on the CPU."""
    pairs = bench.pairs[: 16 if bench.quick else 256]
    here, there = (bench.predictor(device=device).predict(pairs) for device in (bench.device, "cpu"))
    return {"largest": float(np.abs(here.probabilities - there.probabilities).max())}


def end_to_end(bench: Bench, kind: str) -> dict[str, float]:
    """Return the texts per second of `ernie-pair embed`, its start left out by a run of few texts."""
    seconds, count = [], 200 if bench.quick else TEXTS
    for texts in (count // 10, count):
        file, output = bench.folder / f"{kind}-{texts}.txt", bench.folder / f"{kind}-{texts}"
        lines = [bench.pairs[place % len(bench.pairs)][place % 2] for place in range(texts)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        words = [sys.executable, "-m", "ernie_pair", "embed", "--device", bench.device]
        words += ["--model_path", str(bench.folder / f"{kind}-shipped")]
        began = time.perf_counter()
        subprocess.run([*words, "--input_file", str(file), "--output_dir", str(output)], check=True)
        seconds.append(time.perf_counter() - began)
    return {"texts/s": round((count - count // 10) / (seconds[1] - seconds[0]))}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    making, running = parts.add_parser("make"), parts.add_parser("run")
    for name in ("--pairs", "--vocab_file", "--output_file"):
        making.add_argument(name, required=True)
    for name in ("--input_file", "--output_dir"):
        running.add_argument(name, required=True)
    running.add_argument("--device", default="gpu")
    running.add_argument("--quick", action="store_true")
    making.set_defaults(do=make)
    running.set_defaults(do=run)
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
