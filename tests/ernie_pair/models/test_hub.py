"""A model named as a Hub names it: downloaded once, pinned in records, or the commands that fetch it."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from children import python
from fake_hub import FakeHub, served
from places import ROOT
from tiny_models import write_bert
from tiny_pair import write_pairs
from waiting import until

from ernie_pair.core.files import hub
from ernie_pair.models import source
from ernie_pair.models.families import FAMILIES

TINY = "org/tiny"


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A Hub with a tiny BERT, and a machine without a model, whose commands ask it."""
    (tmp_path / "published").mkdir()
    hub = FakeHub()
    hub.models[TINY] = write_bert(tmp_path / "published", theirs=True)
    (hub.models[TINY] / "tf_model.h5").write_bytes(b"of another library")
    for name, count in (("train", 40), ("dev", 20)):
        write_pairs(tmp_path / f"{name}.tsv", count)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLD", "1")  # the library reads these as it is imported
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with served(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield hub


FLAGS = (
    "--train_file train.tsv --dev_file dev.tsv --max_steps 2 --batch_size 4 --max_seq_len 32 --device cpu "
    "--checkpoint_steps 1"
)


def train(*words, **environment):
    words = ["-m", "ernie_pair", "train", *shlex.split(FLAGS), "--output_dir", "out", *words]
    return python(*words, cwd=os.getcwd(), **environment)


def fetch(name, **environment):
    """The folder, in a process of its own; or the error line."""
    program = "from ernie_pair.core.cli.cli import exit_code_of\n"
    program += "from ernie_pair.core.files.hub import local_model\n"
    program += f"import sys; sys.exit(exit_code_of(lambda: print(local_model({name!r}, 'model_path'))))"
    done = python("-c", program, cwd=os.getcwd(), **environment)
    return done.stdout.strip() or done.stderr.splitlines()[-1]


def recorded():
    return yaml.safe_load(Path("out/config.yaml").read_text("utf-8"))["model_name_or_path"]


def test_a_run_downloads_its_start_and_pins_it(world):
    done = train("--model_name_or_path", TINY)
    assert done.returncode == 0 and "HTTP Request" not in done.stderr, done.stderr[-2000:]
    assert f"downloading {TINY} from {os.environ['HF_ENDPOINT']}" in done.stderr
    pinned = f"{TINY}@{world.commit(TINY)}"
    assert recorded() == pinned and not any("tf_model" in path for path in world.asked)

    # The author publishes another version, which `hf download` brings into the cache.
    (world.models[TINY] / "README.md").write_text("new")
    newer = fetch(f"{TINY}@{world.commit(TINY)}")
    next(Path("hf/hub").glob("*/refs/main")).write_text(world.commit(TINY))
    assert fetch(TINY, HF_HUB_OFFLINE="1") == newer
    world.asked.clear()
    again = train("--model_name_or_path", TINY, "--logging_freq", "1", HF_HUB_OFFLINE="1")
    assert again.returncode == 0 and recorded() == pinned and not world.asked, again.stderr[-2000:]
    (change,) = yaml.safe_load(Path("out/config.yaml").read_text("utf-8"))["about"]["changes"]
    assert [*change["flags"]] == ["logging_freq"]


def test_processes_that_start_at_once_download_it_once(world):
    words = [sys.executable, "-c", f"from ernie_pair.core.files.hub import *; print(local_model({TINY!r}))"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [subprocess.Popen(words, env=here, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    folders = {each.communicate(timeout=60)[0] for each in started}
    asked = [path for path in world.asked if path.endswith("/model.safetensors")]
    assert len(folders) == 1 and len(asked) == 2  # its size, and its content


def test_a_download_that_was_killed_is_no_model_and_goes_on(world):
    weights = world.models[TINY] / "model.safetensors"
    world.cut = 200
    world.gate.clear()
    words = [sys.executable, "-m", "ernie_pair", "predict", "--model_path", TINY, "--input_file", "dev.tsv"]
    here = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = subprocess.Popen([*words, "--output_file", "o.tsv"], env=here, stderr=subprocess.DEVNULL)
    until(lambda: any(Path("hf/hub").rglob("*.incomplete")), 60)
    begun.send_signal(signal.SIGTERM)
    assert begun.wait(30) == -signal.SIGTERM
    world.cut = None
    world.gate.set()
    told = fetch(TINY, HF_HUB_OFFLINE="1")
    assert "cannot be reached (HF_HUB_OFFLINE is set); fetch its folder" in told
    folder = Path(fetch(TINY))
    assert (folder / weights.name).read_bytes() == weights.read_bytes()


@pytest.mark.parametrize("name, refusal, reason", [
    ("org/absent", None, "has no org/absent that is public: correct the name, or log in"),
    ("org/lost", (404, "RepoNotFound"), "has no org/lost that is public"),
    ("org/gated", (403, "GatedRepo"), "org/gated is gated: accept its conditions on"),
    ("org/broken", (500, ""), "cannot be reached; fetch its folder from Hugging Face: hf download"),
    (f"{TINY}@v9", None, f"{TINY} has no revision v9: correct what follows the @"),
])  # fmt: skip
def test_what_the_hub_refuses_is_said_in_a_line(world, name, refusal, reason):
    if refusal:
        world.refused[name] = refusal
    told = fetch(name)
    assert told.startswith(f"error: --model_path {name} is not a folder, and ") and reason in told
    assert "@" in name or f"modelscope download --model {name} --local_dir {name[4:]}" in told


def test_torch_weights_are_fetched_where_there_are_no_others(world):
    (world.models[TINY] / "pytorch_model.bin").write_bytes(b"torch")
    assert not (Path(fetch(TINY)) / "pytorch_model.bin").exists()
    (world.models[TINY] / "model.safetensors").unlink()
    folder = Path(fetch(f"{TINY}@{world.commit(TINY)}"))
    assert (folder / "pytorch_model.bin").read_bytes() == b"torch"


def test_names_of_paddlenlp_are_not_asked_of_the_hub():
    names = {name for family in FAMILIES for name in source._built_in_configs(family) if "/" in name}
    assert names == {*hub.BUILT_IN}
    others = ["./here", "/there", "a/b/c", "我的模型", "out put"]
    assert not any(map(hub.is_hub_name, [*names, *others])) and not any(map(hub.download_hint, others))
