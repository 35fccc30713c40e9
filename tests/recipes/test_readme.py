"""The marked blocks of the pages, run as written but with fewer steps."""

import json
import re

import pytest
from pages import activated_environment, block_with, blocks_to_run, run_shell
from places import ROOT
from tiny_pair import write_model, write_pairs

pytestmark = [pytest.mark.recipes, pytest.mark.timeout(1200)]
SHORTER = {
    "make_sample.py": "--pairs 360 --documents 200",
    "run_pretrain_static.sh": "--max_steps 6 --decay_steps 6 --eval_iters 2",
    "train_pair.py": "--max_steps 6",
}


def shortened(command):
    """A flag already in the command gets the smaller value; giving it twice would be reported."""
    for name, flags in SHORTER.items():
        if name in command:
            for flag, value in re.findall(r"(--\w+) (\S+)", flags):
                command = re.sub(rf"{flag} \S+", "", command) + f" {flag} {value}"
    return command


@pytest.fixture(scope="module")
def environment():
    return activated_environment()


def test_the_seven_commands(environment, tmp_path):
    # In place of the defaults of prepare_data.sh, which are those of the quickstart.
    paths = {"TEXT": str(tmp_path / "sample" / "corpus.txt"), "OUT": str(tmp_path / "corpus")}
    lines = block_with("recipe").commands
    assert len(lines) == 7
    for command in lines:
        here = shortened(command).replace("output/quickstart", str(tmp_path))
        printed = run_shell(here, ROOT, {**environment, **paths})
        assert "static_to_dynamic" not in command or printed.count("largest difference") == 4
    assert json.loads((tmp_path / "pair" / "test.json").read_text())["rows"] == 40
    predictions = (tmp_path / "predictions.tsv").read_text().splitlines()
    assert predictions[0].startswith("index\tprediction\t") and len(predictions) == 41


def test_the_recipes_for_pairs(environment, tmp_path):
    """On the local device and files, and with fewer steps."""
    train, dev = (write_pairs(tmp_path / name, 40) for name in ("train.tsv", "dev.tsv"))
    gram, ernie, bert = (
        write_model(tmp_path / family, model_type=family) for family in ("ernie_gram", "ernie", "bert")
    )
    here = {"--gpus 0,1": f"--nproc_per_node 2 --log_dir {tmp_path}/log", "output/": f"{tmp_path}/"}
    here.update({"ernie-gram-zh": gram, "ernie-1.0": ernie, "mrpc.yaml": tmp_path / "mrpc.yaml"})
    here.update({f"--train_file {name}": f"--train_file {train}" for name in ("lcqmc", "afqmc")})
    here.update({f"--dev_file {name}": f"--dev_file {dev}" for name in ("lcqmc", "afqmc")})
    lines = block_with("pair recipes").commands
    assert len(lines) == 4
    answers = "\n".join(map(str, ["cpu", 2, 1, 8, 2, bert, "bert", train, dev, tmp_path / "out"]))
    for command in lines:
        for name, value in here.items():
            command = command.replace(name, str(value))
        if " config " in command:
            command = f"printf '%s\n' '{answers}' | {command}"
        else:
            command = re.sub(r"--epochs \d+", "", command) + " --max_steps 4 --from_scratch true"
        if "train_pair.py" in command:
            command += " --device cpu --max_seq_len 32"
        run_shell(command, ROOT, environment)
    runs = {"lcqmc": "accuracy", "afqmc": "accuracy", "mrpc_launch": "f1"}
    assert all(list((tmp_path / name).glob(f"best-{metric}-*")) for name, metric in runs.items())


def test_the_recipe_in_python(environment, tmp_path):
    program = next(block.text for block in blocks_to_run() if "bert-base-uncased" in block.text)
    train, dev = (write_pairs(tmp_path / name, 40) for name in ("train.tsv", "dev.tsv"))
    model = write_model(tmp_path / "bert", model_type="bert")
    here = {'"output/mrpc"': f'"{tmp_path}/out", from_scratch=True, max_steps=4, max_seq_len=32'}
    here.update({"bert-base-uncased": model, '"mrpc", "mrpc"': f'"{train}", "{dev}"'})
    for name, value in here.items():
        assert name in program
        program = program.replace(name, str(value))
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    assert "'f1':" in run_shell(f"python {tmp_path / 'program.py'}", ROOT, environment)


def test_the_doctor_finds_no_defects_in_this_environment(environment):
    assert "no defects found" in run_shell("ernie-pair doctor", ROOT, environment)
