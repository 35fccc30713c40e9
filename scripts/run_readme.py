"""Run the lines of README.md as a newcomer would: its installation, its four lines, its Python block.

python scripts/run_readme.py ROOT        see scripts/test_readme.sh

The blocks are read from README.md; README_cn.md must have the same lines, comments aside. Needs the standard
library alone. What is written is in a temporary folder, which is removed at the end.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List

PAGES = ("README.md", "README_cn.md")
SECONDS = 3600
# 怎么开户 and 如何开户 with other things to open, and other things to do with them: enough to learn from.
THINGS = "账户 信用卡 存折 会员 网银 短信提醒 理财 保险 贷款 基金".split()
DEEDS = ("开通", "注销", "查询", "更换", "挂失", "升级")
ASKS = ("怎么{}{}", "如何{}{}", "我想{}{}", "{}{}要多久")
# What no user has to act on, and a framed warning of pip is none of.
NOISE = re.compile(r"BuildBackendWarning|Warning:|WARNING: (?!Location|.*cache)|\*{20}|DEPRECATION")


def blocks_of(page: Path, language: str) -> List[str]:
    """Return the fenced blocks of a page in a language, in order, without the comments behind commands."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)
    return ["\n".join(re.sub(r"\s+# .*$", "", line) for line in block.splitlines()) for block in blocks]


def write_data(folder: Path) -> None:
    """Write pairs.csv and a folder of texts, small and made up, as the first lines of README expect them."""
    rows, texts = ["问题,相似问题,标签"], []
    for number, thing in enumerate(THINGS):
        for place, deed in enumerate(DEEDS):
            first, second, *_ = (ask.format(deed, thing) for ask in ASKS[place % 2 :])
            other = ASKS[1].format(DEEDS[(place + 1 + number % 3) % len(DEEDS)], thing)
            rows += [f"{first},{second},1", f"{first},{other},0"]
            texts.append(f"{first}？{second}？{other}？请到柜台或者在手机上办理。\n")
    (folder / "pairs.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "texts").mkdir()
    (folder / "texts" / "faq.txt").write_text("\n".join(texts), encoding="utf-8")


class Shell:
    """A folder with an empty HOME, in which the lines of README run one after another, as in one terminal."""

    def __init__(self, folder: Path, python: str):
        self.folder = folder
        kept = {
            name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "LANG", "http"))
        }
        (folder / "home").mkdir()
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").symlink_to(python)
        self.environment: Dict[str, str] = {
            **kept,
            "HOME": str(folder / "home"),
            "PATH": f"{folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", os.path.expanduser("~/.cache/pip")),
        }

    def run(self, line: str, background: bool = False) -> "subprocess.Popen[str]":
        """Run a line in the activated environment, if there is one; end with its output if it fails."""
        began = time.monotonic()
        print(f"$ {line}", flush=True)
        activated = f"[ ! -e .venv/bin/activate ] || . .venv/bin/activate; {line}"
        words = ["sh", "-c", f"exec {line}" if background else f"set -e; {activated}"]
        if background:
            words[2] = f". .venv/bin/activate; exec {line}"
        pipe = subprocess.Popen(
            words, cwd=self.folder / "clone", env=self.environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        if background:
            return pipe
        said, _ = pipe.communicate(timeout=SECONDS)
        print("".join(f"  {each}\n" for each in said.splitlines()[-12:]), end="")
        print(f"  ({time.monotonic() - began:.0f} s)", flush=True)
        if pipe.returncode:
            sys.exit(f"error: README's line ended with {pipe.returncode}: {line}\n{said[-4000:]}")
        if line.startswith("pip ") and NOISE.search(said):
            sys.exit(f"error: the installation warns of what is not the user's to act on:\n{said[-4000:]}")
        self.said = said
        return pipe


def ask_the_service(shell: Shell, serve: str, curl: str) -> None:
    """Start the service, ask it by the line of README until it answers, and stop it."""
    service = shell.run(serve, background=True)
    try:
        for _ in range(120):
            time.sleep(1)
            done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, cwd=shell.folder)
            if done.stdout.strip():
                break
        print(f"$ {curl}\n  {done.stdout.strip()}", flush=True)
        answers = json.loads(done.stdout)
        assert answers, done.stdout
    finally:
        service.terminate()
        said, _ = service.communicate(timeout=60)
        print("".join(f"  {each}\n" for each in said.splitlines()[-5:]), end="")


def main() -> None:
    """Run everything, and print each line with its time."""
    root, began = Path(sys.argv[1]), time.monotonic()
    shells = {page: blocks_of(root / page, "sh") for page in PAGES}
    assert shells[PAGES[0]][:3] == shells[PAGES[1]][:3], "the two READMEs install and run different lines"
    install, lines, *_ = (block.splitlines() for block in shells[PAGES[0]])
    python_block = blocks_of(root / PAGES[0], "python")[0]
    audit, pipeline, serve, curl = lines
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        shell, clone = Shell(Path(folder), os.path.realpath(sys.executable)), Path(folder, "clone")
        clone.mkdir()
        archive = subprocess.run(["git", "-C", str(root), "archive", "HEAD"], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(clone)], input=archive.stdout, check=True)
        for line in install:
            shell.run(line)
        assert (
            "no defects found" in shell.said and "search-params: optuna is not installed; pip " in shell.said
        )
        write_data(clone)
        shell.run(audit)
        shell.run(pipeline)
        ask_the_service(shell, serve, curl)
        shell.run("ernie-pair export --model_path my_service/pair --output_dir shipped --format onnx")
        shell.run(
            "ernie-pair quickstart --documents 60 --pairs 400 --max_steps 20 --epochs 1 --device cpu"
        )  # the data of the Python block
        Path(clone, "block.py").write_text(python_block, encoding="utf-8")
        shell.run("python block.py")
    print(f"README's lines run in the environment that they make ({time.monotonic() - began:.0f} s)")


if __name__ == "__main__":
    main()
