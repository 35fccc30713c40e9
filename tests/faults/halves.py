"""The two trainings of the package on a tiny model each, as command lines."""

import tiny_pair
import tiny_pretrain
from places import SCRIPTS


class Pretraining:
    """What the tests need to know of a half; ``last_step`` is so far off that no signal comes too late."""

    script = SCRIPTS / "run_pretrain_static.py"
    settings = {"max_steps": 60, "checkpoint_steps": 20, "eval_freq": 7, "dp_degree": 2}
    failing = {
        "job_module": "ernie_pair.pretrain.pretrain_job",
        "run_module": "ernie_pair.pretrain.pretrain",
        **{"job": "PretrainJob", "function": "pretrain"},
        "config": "ernie_pair.pretrain.config.pretrain_config import PretrainConfig",
        "its_rank": "self.world.rank",
        "poison": "w = self.program.weights(); self.program.set_weights({k: w[k] * float('nan') for k in w})",
    }

    def __init__(self, folder):
        self.folder = folder
        tiny_pretrain.write_corpus(folder / "data", tiny_pretrain.write_model(folder / "model"))

    def words(self, output, **changes):
        return tiny_pretrain.flags(self.folder / "model", self.folder / "data", output, **changes)


class Pairs:
    """Fine-tuning, two passes a step."""

    script = SCRIPTS / "train_pair.py"
    settings = {"max_steps": 120, "checkpoint_steps": 40, "eval_freq": 35, "logging_freq": 1}
    settings.update(batch_size=4, gradient_accumulation_steps=2, learning_rate=5e-3, device="cpu")
    failing = {
        "job_module": "ernie_pair.pair.train.train_pair",
        "run_module": "ernie_pair.pair.train.train_pair",
        **{"job": "PairJob", "function": "train_pair"},
        "config": "ernie_pair.pair.config.pair_config import TrainConfig",
        "its_rank": "self.process_group.rank",
        "poison": "[p.set_value(p * float('nan')) for p in self.model.parameters()]",
    }

    def __init__(self, folder):
        tiny_pair.write_pairs(folder / "train.tsv", 480, seed=0)
        tiny_pair.write_pairs(folder / "dev.tsv", 41, seed=1)
        tiny_pair.write_model(folder / "model")
        self.folder = folder

    def words(self, output, **changes):
        files = {name: self.folder / f"{name[:-5]}.tsv" for name in ("train_file", "dev_file")}
        model = {"model_name_or_path": self.folder / "model", "model_type": "ernie", "from_scratch": "true"}
        given = {**files, **model, "output_dir": output, **changes}
        return [f"--{name}={value}" for name, value in given.items()]


HALVES = {"pretraining": Pretraining, "pairs": Pairs}
