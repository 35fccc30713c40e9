"""What pyproject.toml asks for, and what of it the tests need."""

import re
import subprocess
import sys

from places import ROOT


def pins(pattern=r"[\w.-]+"):
    """Return the exact versions that pyproject.toml asks for: read as text, as 3.9 has no tomllib."""
    return re.findall(rf'"({pattern}==[\w.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def constraints():
    return (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")


def test_what_is_asked_for_exactly_is_of_the_tested_set():
    assert len(pins()) > 10
    assert {pin.lower() for pin in pins()} <= set(constraints())


def test_gpu_build_cuda_libraries_are_complete_and_tested():
    pins_of_cuda = pins(r"nvidia-[\w-]+")
    assert pins_of_cuda == [line for line in constraints() if line.startswith("nvidia-")]
    libraries = "cublas cuda-nvrtc cuda-runtime cudnn cufft curand cusolver cusparse nccl"
    assert [re.match(r"nvidia-(.+)-cu11==", pin)[1] for pin in pins_of_cuda] == libraries.split()


def test_a_convolution_does_not_abort_the_process():
    """On a CPU too the GPU build opens cuDNN for it, which opens nvrtc."""
    program = "import paddle; paddle.set_device('cpu'); paddle.nn.Conv1D(2, 2, 1)(paddle.ones([1, 2, 3]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
