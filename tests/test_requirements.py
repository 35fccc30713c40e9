"""What setup.py asks for, and what of it the tests need."""

import re
import subprocess
import sys

from places import ROOT


def test_the_cuda_libraries_of_the_gpu_build_are_complete_and_of_the_tested_set():
    pins = re.findall(r'"(nvidia-[\w-]+==[\d.]+)"', (ROOT / "setup.py").read_text())
    tested = (ROOT / "constraints.txt").read_text().split()
    assert pins == [line for line in tested if line.startswith("nvidia-")]
    libraries = "cublas cuda-nvrtc cuda-runtime cudnn cufft curand cusolver cusparse nccl"
    assert [re.match(r"nvidia-(.+)-cu11==", pin)[1] for pin in pins] == libraries.split()


def test_a_convolution_does_not_abort_the_process():
    """On a CPU too the GPU build opens cuDNN for it, which opens nvrtc."""
    program = "import paddle; paddle.set_device('cpu'); paddle.nn.Conv1D(2, 2, 1)(paddle.ones([1, 2, 3]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
