"""Every fenced block of the READMEs and of docs: run as written but shortened, or compared.

A shell or Python block without a special case is run word for word. A text that shows an output or a layout
needs an entry in TEXTS. So a new block without a test of its own fails here unless it works.
"""

import ast
import json
import re
import shutil
import signal
import subprocess
import urllib.request
from contextlib import contextmanager, suppress

import pytest
import test_quickstart
import test_readme
import test_second_week
import tiny_pair
import tiny_pretrain
import yaml
from pages import ROOT, activated_environment, blocks, blocks_to_run, run_shell, text_of
from tiny_models import ORDER, POOLER, write_bert, write_sentence
from waiting import free_port, until

from ernie_pair.models.networks.classifier import build_classifier
from ernie_pair.models.source import open_model
from ernie_pair.pairs.train.train_pair import train_pair

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(600)]

# Blocks and commands that a test of test_readme.py or test_quickstart.py runs.
ELSEWHERE = {
    "recipe": "test_the_seven_commands",
    "pair recipes": "test_the_recipes_for_pairs",
    "sh scripts/quickstart.sh": "test_quickstart_reaches_the_results_of_the_pages",
    "output ": "test_the_pages_show_the_published_results",
    "# BERT on MRPC, from Python.": "test_the_recipe_in_python",
    "watch ": "test_the_commands_that_watch_a_service",
}
PRETRAIN = "--max_steps 2 --micro_batch_size 4 --global_batch_size 8 --max_seq_len 32 --eval_iters 1"
PRETRAIN += " --split 80,10,10"
PREPARE = "--input_path documents.jsonl --output_prefix ray/text --vocab_file my_model/vocab.txt"
TRAIN = "--train_file train.tsv --dev_file dev.tsv --output_dir output/two"
OF_PADDLE = "--extra-index-url https://www.paddlepaddle.org.cn/packages/stable/cu126/ "
TINY = "--max_steps 2 --max_seq_len 32 --device cpu"
DRY = "--dry-run --no-deps --no-build-isolation"
# Changes to a command that contains the first string: replacements (which must match), then additions.
CHANGES = [
    ("-m venv .venv", {"-m venv .venv": "-m venv --without-pip .venv"}, ""),  # each line has its own shell
    ("scripts/test.sh", {}, "tests/test_layers.py"),
    ("OUT=data sh", {"OUT=data": "OUT=prepared"}, ""),
    ("prepare --engine ray", {"--ray_address ...": ""}, f"{PREPARE} --workers 2"),
    ("GPUS=0,1,2,3", {"GPUS=0,1,2,3": "NPROC=1"}, ""),
    ("NPROC=2 DEVICE=cpu", {"OUTPUT=output/mine": "OUTPUT=output/two_processes"}, ""),
    ("run_pretrain_static.sh", {}, PRETRAIN),
    ("--phases", {"128:9000,512:1000": "16:1,32:1"}, ""),
    ("ernie-pair pretrain", {}, f"{PRETRAIN} --device cpu"),
    ("--gpus 0,1", {"--gpus 0,1": "--nproc_per_node 2"}, "--device cpu"),
    ("output/first", {}, TINY),
    ("output/planned", {}, TINY),
    ("output/own", {}, TINY),
    ("ernie-gram-zh ...", {"...": TRAIN}, ""),
    ("--device cpu ...", {"...": f"--model_name_or_path ernie-1.0 --model_type ernie {TRAIN}1"}, ""),
    ("lcqmc", {"--train_file lcqmc": "--train_file train.tsv", "--dev_file lcqmc": "--dev_file dev.tsv"}, ""),
    ("train_pair.py", {}, TINY),
    ("train-embedding", {}, "--max_steps 2 --batch_size 8 --max_seq_len 32 --device cpu"),
    ("--objective kl --teacher output/pair", {"--teacher output/pair": "--teacher ernie-1.0"}, ""),
    ("--dims 64,128", {"--dims 64,128": "--dims 8,16"}, ""),  # the tiny model makes vectors of 32 numbers
    ("ernie-pair config", {"ernie-pair": "printf '%s\\n' $ANSWERS | ernie-pair"}, ""),
    ("ernie-pair launch", {}, "--max_steps 2"),
    ("ernie-pair pipeline", {}, "--minutes 0.01 --epochs 1 --device cpu"),
    (
        "ernie-pair distill",
        {"--teacher output/pair": "--teacher ernie-1.0", "--layers 4": "--layers 1"},
        TINY,
    ),
    ("compare models", {"teacher=output/pair": "teacher=ernie-1.0"}, "--bootstrap 10"),
    ("--output_dir circle/reranker", {}, TINY),
    ("--output_file circle/hard.tsv", {}, "--threshold 1"),  # it has learned too little to know a match
    ("--target re", {}, "--max_steps 2"),
    ("--target ra", {}, "--max_steps 2"),
    ("compare starts", {"--seeds 3": "--seeds 1"}, ""),
    ("cross-validate", {"--folds 5": "--folds 2"}, TINY),
    ("learning-curve", {}, f"{TINY} --seeds 2 --bootstrap 10"),
    ("search-params", {"--trials 20": "--trials 2"}, TINY),
    (OF_PADDLE, {OF_PADDLE: "", "[gpu]": "[train]"}, ""),  # no index but PyPI is used
    ("pip install --no-deps paddlenlp", {}, "--dry-run"),
    ("pip install -c", {'".[': f'"{ROOT}[', "-c constraints": f"-c {ROOT}/constraints"}, DRY),
]
ANSWERS = "cpu 2 1 8 2 ernie-1.0 ernie train.tsv dev.tsv output/answers"
# What a block needs but does not make itself, and the command that makes it.
MADE_BEFORE = {
    "output/first/config.yaml": "ernie-pair train --model_name_or_path ernie-1.0 --train_file train.tsv"
    " --dev_file dev.tsv --output_dir output/first --max_steps 2 --max_seq_len 32 --device cpu",
    "output/mine": "OUTPUT=output/mine DATA=data MODEL=my_model NPROC=1 sh scripts/run_pretrain_static.sh",
    '"faq.index"': "ernie-pair index --input_file faq.tsv --embedding_model embedder --output_dir faq.index",
    '"output/encoder"': "ernie-pair train-embedding --model_name_or_path ernie-1.0 --train_file train.tsv"
    " --dev_file dev.tsv --output_dir output/encoder",
    '"output/vectors"': "ernie-pair embed --model_path output/encoder --input_file texts.txt"
    " --output_dir output/vectors",
    '"ship"': "ernie-pair export --model_path output/pair/best-accuracy-* --output_dir ship",
    '"output/folds"': "ernie-pair cross-validate --folds 5 --model_name_or_path ernie-1.0"
    " --train_file train.tsv --output_dir output/folds",
}
OUTPUTS = re.compile(r"(?:--(?:output|output_file|output_dir|report|output_prefix) |\bOUT(?:PUT)?=)(\S+)")


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    here = tmp_path_factory.mktemp("template")
    tokens = dict.fromkeys([*tiny_pretrain.VOCAB[:4], *tiny_pair.CHARACTERS, *tiny_pretrain.VOCAB[4:]])
    with pytest.MonkeyPatch.context() as patch:
        for module in (tiny_pair, tiny_pretrain):
            patch.setattr(module, "VOCAB", list(tokens))
        config = tiny_pair.train_config(
            here,
            max_steps=60,
            learning_rate=5e-3,
            eval_freq=30,
            checkpoint_steps=60,
            match_embeddings=False,  # it stands for published models
        )
        for name in ("my_model", "gram"):
            tiny_pair.write_model(here / name)
        for prefix, seed in (("data", 0), ("data/held_out", 1)):
            tiny_pretrain.write_corpus(here / prefix, here / "my_model", seed=seed)
    train_pair(config)
    (best,) = (here / "out").glob("best-accuracy-*")
    dynamic = ("output/dynamic", "output/quickstart/dynamic")
    for name in ("my_model", "embedder", "other-embedder", "ernie-1.0", *dynamic, f"output/pair/{best.name}"):
        shutil.copytree(best, here / name, dirs_exist_ok=True)
    gram = open_model(str(here / "gram"), model_type="ernie_gram", from_scratch=True)
    (here / "ernie-gram-zh").mkdir()
    build_classifier(gram, seed=3, dropout=0.1).write(here / "ernie-gram-zh", gram.vocab_file)
    shutil.rmtree(here / "out")
    write_bert(here / "published", without=(ORDER, POOLER), theirs=True)
    (here / "published" / "hf").rename(here / "chinese-roberta-wwm-ext")
    for name in ("bge-small-zh", "multilingual-e5-small"):
        write_sentence(here / name, prompts={"query": "我", "passage": "你"})
    write_texts(here)
    return here


def write_texts(here):
    for folder in ("my_texts", "texts"):
        (here / folder).mkdir()
    characters = tiny_pretrain.CHARACTERS
    texts = ["".join(characters[(i + j) % 24] for j in range(9)) + "。" for i in range(24)]
    for path in ("my_texts/a.txt", "texts/a.txt"):
        (here / path).write_text("\n".join("".join(f"{t}\n" for t in texts[i : i + 4]) for i in range(20)))
    rows = (here / "train.tsv").read_text(encoding="utf-8").splitlines() * 3
    table = ["编号,用户问题,标准问题,是否匹配"]
    for number, row in enumerate(rows):
        a, b, label = row.split("\t")
        table.append(f"{number},{a},{b},{'否是'[int(label)]}")
    (here / "pairs.csv").write_bytes("\r\n".join(table).encode("utf-8-sig"))
    (here / "documents.jsonl").write_text(
        "".join(json.dumps({"text": "\n".join(texts[i : i + 3])}) + "\n" for i in range(20))
    )
    (here / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    for number, (name, labels) in enumerate({"test.tsv": True, "new.tsv": False}.items()):
        tiny_pair.write_pairs(here / name, 40, seed=7 + number, labels=labels)
    rows = [f"q{number}\t{text}\n" for number, text in enumerate(texts)]
    (here / "faq.tsv").write_text("".join(rows), encoding="utf-8")
    (here / "new_faq.tsv").write_text("n1\t今天\nn2\t明天\n", encoding="utf-8")
    (here / "changed_faq.tsv").write_text("q1\t今天\nn3\t后天\n", encoding="utf-8")
    (here / "gone.txt").write_text("q2\nn1\n", encoding="utf-8")
    asked = [(f"{text[:4]}{text[5:]}", f"{text}", number) for number, text in enumerate(texts)]
    answers = "".join(f"a{n},{one},答案{n}\n" for one, _, n in asked)
    (here / "answers.csv").write_text(f"id,question,answer\n{answers}", encoding="utf-8")
    (here / "asked.tsv").write_text(
        "question\tid\n" + "".join(f"{text}\ta{n}\n" for _, text, n in asked), encoding="utf-8"
    )
    rows = "".join(f"{text}{text[:more]},答案{n}\n" for n, text in enumerate(texts) for more in range(5))
    (here / "faq.csv").write_text(f"question,answer\n{rows}", encoding="utf-8")
    (here / "questions.txt").write_text("".join(f"{text}\n" for text in texts[:5]), encoding="utf-8")
    lines = (here / "dev.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    for row in (0, 14, 28):  # wrong labels, so that there is something to calibrate
        lines[row] = lines[row].replace("\t0\n", "\t1\n")
    (here / "dev.tsv").write_text("".join(lines), encoding="utf-8")
    # Rank 0 serves the store by which the others join: it may not end before they have.
    program = "import paddle.distributed as dist\ndist.init_parallel_env()\ndist.barrier()\n"
    (here / "my_train.py").write_text(program)
    pairs = here / "output" / "quickstart" / "sample" / "pairs"
    pairs.mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        shutil.copy(here / name, pairs / name)
    for number, name in enumerate(("", "_dev")):
        tiny_pair.write_rows(here / f"sts{name}.tsv", tiny_pair.score_rows(33, number))
        tiny_pair.write_rows(here / f"candidates{name}.tsv", tiny_pair.candidate_rows(12, number))
    flags = {"model_type": "ernie", "train_file": "train.tsv", "dev_file": "dev.tsv", "device": "cpu"}
    sizes = {"max_steps": 2, "batch_size": 8, "max_seq_len": 32}
    (here / "pair.yaml").write_text(yaml.safe_dump({**flags, **sizes}))


@pytest.fixture
def here(template, tmp_path):
    """A copy of the template, in which the commands of one block run one after the other."""
    return shutil.copytree(template, tmp_path / "here")


@pytest.fixture(scope="module")
def environment():
    own = {"OMP_NUM_THREADS": "1", "ANSWERS": ANSWERS, "RAY_ADDRESS": "local"}  # not a Ray that runs here
    return {**activated_environment(), **own}


def changed(command):
    """``command``, shortened, with the scripts of this folder; its comment is cut off."""
    for words, replaced, added in CHANGES:
        if words not in command:
            continue
        for old, new in replaced.items():
            assert old in command, f"{old} is not in {command}: CHANGES does not fit the page any more"
            command = command.replace(old, new)
        command = re.sub(r"\s#.*", "", command)
        for flag in re.findall(r"--\w+", added):
            command = re.sub(rf"{flag} \S+", "", command)  # giving it twice would be reported
        command = f"{command} {added}"
    return re.sub(r"(?<![\w/])(scripts|data_tools)/", rf"{ROOT}/\1/", command)


def sh(command, here, environment, timeout=300):
    printed = run_shell(command, here, environment, timeout)
    for output in [output for output in OUTPUTS.findall(command) if output != "-"]:
        found = list(here.glob(f"{output}*"))
        assert bool(found) == ("--dry_run" not in command), f"{command}\nleft {found} as {output}"
    return printed


@contextmanager
def serving(command, here, environment, answers, number, code):
    """Yield the free port of a service once it ``answers`` there, or in its log; end it by a signal."""
    port, log = free_port(), here / "service.log"
    words = ["sh", "-c", "exec " + re.sub(r"--port \d+", f"--port {port}", command)]
    with open(log, "w") as file:
        process = subprocess.Popen(words, cwd=here, env=environment, stdout=file, stderr=file)

    def is_up():
        assert process.poll() is None, log.read_text()
        return answers(port, log.read_text())

    try:
        until(is_up)
        yield port
    finally:
        process.send_signal(number)
        process.wait(timeout=60)
    assert process.returncode in (0, code)


def is_healthy(port, log):
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
        return answer.status == 200


def serve(command, here, environment, questions=()):
    """Start a service, check its health, run the commands ``questions`` against it, and stop it."""
    with serving(changed(command), here, environment, is_healthy, signal.SIGTERM, 143) as port:
        for question in questions:
            answer = sh(question.replace(":8000", f":{port}"), here, environment)
            assert re.search('"(scores|embedding|relevance_score|hits)"', answer), answer


def prints_its_address(port, log):
    return "http://127.0.0.1" in log


def elsewhere(text):
    names = [test for beginning, test in ELSEWHERE.items() if text.startswith(beginning)]
    assert all(
        any(hasattr(one, name) for one in (test_readme, test_quickstart, test_second_week)) for name in names
    )
    return names


OF_OTHERS = "hand over"  # tests/peer/test_hand_over.py and tests/recipes/test_clusters.py run these
SHELL = [block for block in blocks_to_run() if block.language == "sh" and not elsewhere(block.mark)]
OWN = [block for block in blocks_to_run() if not block.mark.startswith(OF_OTHERS)]
PYTHON = [block for block in OWN if block.language == "python" and not elsewhere(block.text)]


def make_what_it_needs(block, here, environment):
    """Run the commands of MADE_BEFORE for what ``block`` does not make, and write the modules it names."""
    for needed, command in MADE_BEFORE.items():
        if needed in block.text and not re.search(rf"(--output_dir |OUTPUT=){needed}\b", block.text):
            sh(changed(command), here, environment)
    for module, name in re.findall(r" (my_\w+):(\w+)", block.text):
        shown = [one.text for one in blocks() if re.search(rf"^(def|class) {name}\b", one.text, re.M)]
        (here / f"{module}.py").write_text(shown[0], encoding="utf-8")


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_a_shell_block_runs(block, here, environment):
    make_what_it_needs(block, here, environment)
    for made in ("output/pair", "pair.yaml"):  # where this block makes it itself
        if re.search(rf"--output_(dir|file) {made}\s", block.text):
            shutil.move(here / made, here / "of_the_template")
    if all(command.startswith("curl ") for command in block.commands):
        if shutil.which("curl") is None:
            pytest.skip("there is no curl on this machine")
        sh("ernie-pair export --model_path output/pair/best-accuracy-* --output_dir ship", here, environment)
        models = "--model_path ship --embedding_model embedder"
        serve(f"ernie-pair serve {models} --port 8000", here, environment, block.commands)
        return
    for command in block.commands:
        if elsewhere(command) or command.startswith("curl "):  # that asks the service of its block
            continue
        if " board " in command:
            with serving(command, here, environment, prints_its_address, signal.SIGINT, 130):
                pass  # interrupted as by Ctrl-C
        elif " serve " in command:
            serve(command, here, environment, [one for one in block.commands if one.startswith("curl ")])
        else:
            sh(changed(command), here, environment)


# Names that a block takes from its notebook, and replacements where it would need the network.
PRELUDE = """
from ernie_pair import PairConfig, PairTrainer

def train(learning_rate):
    small = {"model_type": "ernie", "max_steps": 2, "batch_size": 8, "device": "cpu"}
    config = PairConfig("output", learning_rate=learning_rate, **small)
    return PairTrainer("ernie-1.0", config, "train.tsv", "dev.tsv").train().step
"""
IN_PYTHON = {
    "max_seq_len=48)": "max_seq_len=32, max_steps=2, device='cpu')",
    "documents=1000, pairs=10000": "documents=100, pairs=1200",
    "max_steps=2400, eval_freq=400": "max_steps=4, eval_freq=2",
    'mteb.get_tasks(tasks=["T2Retrieval", "LCQMC"])': "[mteb.mocks.mock_tasks.MockRetrievalTask()]",
}


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_a_python_block_runs(block, here, environment):
    if "import mteb" in block.text:
        pytest.importorskip("mteb", reason="tests/peer/test_mteb.py evaluates where there is one")
    make_what_it_needs(block, here, environment)
    program = block.text
    for old, new in IN_PYTHON.items():
        program = program.replace(old, new)
    main = "\n".join(f"    {line}" for line in program.splitlines())
    (here / "program.py").write_text(f"{PRELUDE}\nif __name__ == '__main__':\n{main}\n", encoding="utf-8")
    sh("python program.py", here, environment)


@pytest.fixture(scope="module")
def ran(template, environment, tmp_path_factory):
    here = shutil.copytree(template, tmp_path_factory.mktemp("ran") / "here")
    script = f"OUTPUT=pretrained DATA=data MODEL=my_model sh {ROOT}/scripts/run_pretrain_static.sh"
    said = sh(f"{script} {PRETRAIN} --save_steps 1 --logging_freq 1 --eval_freq 1", here, environment)
    words = "pair.yaml --model_name_or_path ernie-1.0 --output_dir paired"
    sh(f"ernie-pair launch {words}", here, environment)
    return here, said


def check_the_line_of_work(text, ran):
    arrows = "prepare_data.sh run_pretrain_static.py ernie_static_to_dynamic.py train_pair.py predict_pair.py"
    arrows = arrows.split()
    assert text.count("->") == len(arrows) and all((ROOT / "scripts" / name).is_file() for name in arrows)


def check_the_tree_of_this_folder(text, ran):
    for line in text.splitlines():
        names, about = re.match(r"(\S+)\s{2,}(.*)", line).groups()
        assert (ROOT / names).is_dir(), names
        for inner in re.findall(r"\b([a-z_]+)/", about):
            assert (ROOT / names / inner).is_dir(), f"{names}{inner}"


def check_what_a_run_leaves(text, ran):
    """The tree lists everything that a run of each half leaves, and nothing else."""
    here, _ = ran
    left = {path.name for name in ("pretrained", "paired") for path in (here / name).iterdir()}
    shown = [
        name for line in text.splitlines()[1:] for name in re.split(r"\s{3,}", line.strip())[0].split("  ")
    ]
    patterns = {re.sub(r"\d[\d.]*", r"[\\d.]+", name.split("/")[0].split(" ")[0]): name for name in shown}
    for pattern, name in patterns.items():
        assert any(re.fullmatch(pattern, entry) for entry in left), f"no {name} in {sorted(left)}"
    unnamed = {entry for entry in left if not any(re.fullmatch(pattern, entry) for pattern in patterns)}
    assert not unnamed, f"the page does not name {unnamed}"
    for name in ("pretrained", "paired"):
        (step,) = (here / name / "checkpoints").iterdir()
        assert re.fullmatch(r"step_\d{8}", step.name) and (here / name / "model_last").resolve() == step
        inside = {path.name for path in step.iterdir()}
        assert {"state.json", "MANIFEST.json"} < inside
        assert any(name.endswith("safetensors") for name in inside)
    for model in (*(here / "pretrained").glob("model_2"), *(here / "paired").glob("best-*")):
        assert (model / "model_state.pdparams").is_file() and (model / "config.json").is_file()


def check_what_a_run_prints(text, ran):
    """The lines on the page have the format of those of a run, and each event on the page occurs in a run."""
    event = re.compile(r"^\d\d:\d\d:\d\d (\w+) +step +\d+/\d+ +[\d.]+%  epoch +[\d.]+  ", re.M)
    shown = event.findall(text)
    assert len(shown) == len(text.splitlines())
    assert set(shown) <= set(event.findall(ran[1])), ran[1]


def check_the_code_of_another_library(text, ran):
    """It cannot run here; it is Python, and stands above the block of this package."""
    ast.parse(text)


TEXTS = {
    "# there: ": check_the_code_of_another_library,
    "23:00:29 start": check_what_a_run_prints,
    "raw text -> token ids": check_the_line_of_work,
    "原始文本 -> token id": check_the_line_of_work,
    "output_dir/": check_what_a_run_leaves,
    "data_tools/ ": check_the_tree_of_this_folder,
}


@pytest.mark.parametrize(
    "block", [one for one in OWN if one.language not in ("sh", "python")], ids=lambda block: block.name
)
def test_a_text_block_matches_the_actual_output_or_layout(block, ran):
    if elsewhere(block.text):
        return
    checks = [check for beginning, check in TEXTS.items() if block.text.startswith(beginning)]
    assert checks, f"{block.page}:{block.line}: nothing compares this text with what there is; see TEXTS"
    for check in checks:
        check(block.text, ran)


def test_every_special_case_still_matches_a_block():
    shown = blocks()
    texts = [block.text for block in shown] + [block.mark for block in shown]
    commands = [command for block in shown if block.language == "sh" for command in block.commands]
    for beginning in (*ELSEWHERE, *TEXTS):
        assert any(text.startswith(beginning) for text in [*texts, *commands]), beginning
    for words, _, _ in CHANGES:
        assert any(words in command for command in commands), words
    for words in IN_PYTHON:
        assert any(words in block.text for block in shown), words


def test_the_documented_exit_codes_match_the_error_classes():
    from ernie_pair.core import errors

    classes = [value for value in vars(errors).values() if isinstance(getattr(value, "exit_code", None), int)]
    page = text_of("docs/en/resume-and-faults.md").replace("\n", " ")
    listed = re.search(r"Exit codes: (.*?)\. ", page)[1]
    codes = {int(code) for code in re.findall(r"\b\d+\b", listed)}
    assert {error.exit_code for error in classes} == codes - {0, 130, 141, 143}
