"""Install ernie_pair and data_tools; compile data_tools._helpers when there is a compiler."""

import sys
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import find_packages, setup


class OptionalBuild(build_ext):
    """The compiled helper is a faster twin of the Python: without a compiler, go on and say so."""

    def run(self):
        try:
            super().run()
        except Exception as error:  # setuptools raises many kinds here; each of them means "no helper"
            self._say_twin(error)

    def build_extension(self, extension):
        try:
            super().build_extension(extension)
        except Exception as error:
            self._say_twin(error)

    def _say_twin(self, error):
        sys.stderr.write(f"warning: data_tools._helpers is not compiled ({error}); its Python twin is used\n")


# The floors and ceilings keep out the releases that break the import of Paddle 2.6 and PaddleNLP 2.8.
REQUIRES = [
    "paddlenlp==2.8.1",
    "visualdl==2.5.3",
    "numpy>=1.23,<2",
    "protobuf>=3.20.2,<6",
    "huggingface-hub>=0.19,<0.27",
    "aistudio-sdk>=0.2,<0.3",
    "datasets>=2.14,<3.2",
    "pyarrow>=12,<19",
    "fsspec<2024.10",
    "flask>=2.2,<3.2",
    "flask-babel>=3,<5",
    "werkzeug>=2.2,<3.2",
    "pandas>=1.5,<3",
    "onnx>=1.15,<1.18",
    "setuptools>=64,<81",
    "pip",
    "jsonargparse>=4.34,<4.36",
    "packaging>=22",
    "pyyaml>=6",
    "tokenizers>=0.20,<0.22",
    "rjieba>=0.1.11,<0.2",
    "safetensors>=0.4.5,<0.6",
    "cloudpickle>=3,<4",
    "scikit-learn>=1.3,<1.7",
    "scipy>=1.9,<2",
    "jinja2>=3.1,<4",
    "zstandard>=0.22",
    "tqdm>=4.66",
    "matplotlib>=3.8,<3.11",
]

# The GPU wheel of Paddle brings no CUDA: these hold it, so that a machine needs only the driver. cuDNN
# opens nvrtc by itself, and aborts the process where it is absent.
CUDA_11 = [
    "nvidia-cublas-cu11==11.11.3.6",
    "nvidia-cuda-nvrtc-cu11==11.8.89",
    "nvidia-cuda-runtime-cu11==11.8.89",
    "nvidia-cudnn-cu11==8.7.0.84",
    "nvidia-cufft-cu11==10.9.0.58",
    "nvidia-curand-cu11==10.3.0.86",
    "nvidia-cusolver-cu11==11.4.1.48",
    "nvidia-cusparse-cu11==11.7.5.86",
    "nvidia-nccl-cu11==2.19.3",
]

AUDIT = ["datasketch>=1.6,<1.7", "hanzidentifier>=1.2,<1.3", "py3langid>=0.2,<0.3"]
ONNX = ["onnxruntime>=1.19,<1.20", "paddle2onnx>=1.3,<1.4"]
SERVE = ["fastapi>=0.115,<0.116", "uvicorn>=0.30,<0.33", "prometheus-client>=0.20,<0.22"]
RAY = ["ray>=2.40,<2.41"]
TEST = [
    *(*AUDIT, *RAY, *ONNX, *SERVE, "httpx>=0.27", "filelock>=3.12"),
    *("pytest>=8,<9", "pytest-timeout>=2.3,<3", "pytest-xdist>=3.8,<4", "hypothesis>=6.100,<7"),
]

setup(
    name="ernie-pair",
    version="0.1.0",
    description="Chinese sentence pairs, from raw text to predictions: ERNIE on Paddle",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.9,<3.13",
    packages=find_packages(include=["data_tools", "data_tools.*", "ernie_pair", "ernie_pair.*"]),
    package_data={
        "data_tools": ["helpers.cpp"],
        "ernie_pair.pair.evaluation": ["report.html"],
        "ernie_pair.server": ["page.html"],
    },
    install_requires=REQUIRES,
    extras_require={
        "cpu": ["paddlepaddle==2.6.2"],
        "gpu": ["paddlepaddle-gpu==2.6.2", *CUDA_11],
        "audit": AUDIT,
        "onnx": ONNX,
        "ray": RAY,
        "serve": SERVE,
        "test": TEST,
        "dev": [*TEST, "ruff==0.8.1"],
    },
    ext_modules=[Pybind11Extension("data_tools._helpers", ["data_tools/helpers.cpp"], cxx_std=17)],
    cmdclass={"build_ext": OptionalBuild},
    entry_points={"console_scripts": ["ernie-pair=ernie_pair.__main__:main"]},
    zip_safe=False,
)
