"""Compile what is faster compiled, when there is a compiler; put into the source archive what a clone holds.

All else about the package is in pyproject.toml.
"""

import logging
import platform
import sys
import warnings
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import Extension, setup
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError
from setuptools.warnings import InformationOnly

# How an editable installation finds its files: shown as a warning, as if there were something to do.
warnings.filterwarnings("ignore", category=InformationOnly)
logging.getLogger("setuptools.command.editable_wheel").setLevel(logging.ERROR)

HELPERS, KERNELS = "data_tools._helpers", "ernie_pair.kernels._fused"
# What is used without it.
TWINS = {HELPERS: "Python", KERNELS: "Paddle's own kernels"}


class KernelExtension(Extension):
    """The fused CPU kernels: C functions, opened by ctypes; each file is for a level of processors."""

    FOLDER = Path("ernie_pair", "kernels", "cpp")
    FROM_GCC_10, FROM_GCC_11 = ("-mavx512bf16",), ("-mamx-tile", "-mamx-bf16")
    OF_NEWER_COMPILERS = (*FROM_GCC_10, *FROM_GCC_11)  # without them the kernels of the level are left out
    AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
    LEVELS = {
        "interface.cpp": (),
        "avx2.cpp": ("-mavx2", "-mfma"),
        "avx512.cpp": AVX512,
        "avx512_bf16.cpp": (*AVX512, *FROM_GCC_10),
        "amx_bf16.cpp": (*AVX512, *FROM_GCC_10, *FROM_GCC_11),
    }
    FLAGS = (
        *("-O3", "-std=c++17", "-fopenmp", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
        "-ffp-contract=off",  # the same roundings from every compiler; what is to be fused says so
        # GCC takes the undefined registers of its own intrinsics for a fault, thousands of times.
        *("-Wall", "-Wno-uninitialized", "-Wno-maybe-uninitialized"),
    )

    def __init__(self):
        sources = [str(self.FOLDER / name) for name in self.LEVELS]
        headers = [str(path) for path in sorted(self.FOLDER.glob("*.h"))]
        super().__init__(KERNELS, sources, depends=headers, optional=True)

    def build(self, compiler, output_dir, output_file):
        """Compile each file with the flags of its level, and link without a runtime of OpenMP.

        Paddle has loaded one: a second beside it would share out each loop anew.
        """
        objects = []
        for source in self.sources:
            flags = self.LEVELS[Path(source).name]
            newer = [flag for flag in flags if flag in self.OF_NEWER_COMPILERS]
            if newer and not self._knows(compiler, output_dir, flags):
                flags = [flag for flag in flags if flag not in newer]
                sys.stderr.write(f"warning: {source} is left out: this compiler knows no {newer[-1]}\n")
            objects += self._compile(compiler, source, output_dir, [*self.FLAGS, *flags])
        compiler.link_shared_object(objects, output_file, libraries=["m", "dl"])

    def _knows(self, compiler, output_dir, flags):
        empty = Path(output_dir, "empty.cpp")
        empty.parent.mkdir(parents=True, exist_ok=True)
        empty.write_text("")
        try:
            compiler.compile([str(empty)], output_dir, extra_postargs=list(flags))
        except CompileError:
            return False
        return True

    def _compile(self, compiler, source, output_dir, flags):
        return compiler.compile([source], output_dir, extra_postargs=flags, depends=self.depends)


class OptionalBuild(build_ext):
    """What is compiled is a faster twin: without a compiler, go on and say so."""

    def run(self):
        try:
            super().run()
        except Exception as error:  # setuptools raises many kinds here; each of them means "no compiler"
            for extension in self.extensions:
                self._say_twin(extension, error)

    def build_extension(self, extension):
        try:
            if isinstance(extension, KernelExtension):
                target = Path(self.get_ext_fullpath(extension.name))
                target.parent.mkdir(parents=True, exist_ok=True)
                extension.build(self.compiler, self.build_temp, str(target))
            else:
                super().build_extension(extension)
        except Exception as error:
            self._say_twin(extension, error)

    def _say_twin(self, extension, error):
        instead = TWINS[extension.name]
        sys.stderr.write(f"warning: {extension.name} is not compiled ({error}); used instead: {instead}\n")


class WholeSdist(sdist):
    """Beside the packages: the tests and what they read, so that who packages it anew can run them."""

    FOLDERS = ("tests", "scripts", "docs", "notebooks", ".ci")
    FILES = (
        "*.md",
        "mkdocs.yml",
        "constraints*.txt",
        ".editorconfig",
        ".gitignore",
        ".pre-commit-config.yaml",
    )

    def make_distribution(self):
        for folder in self.FOLDERS:
            self.filelist.graft(folder)
        self.filelist.prune("notebooks/output")  # what running them has made
        for pattern in self.FILES:
            self.filelist.include(pattern)
        self.filelist.global_exclude("*.py[co]")
        super().make_distribution()


EXTENSIONS = [Pybind11Extension(HELPERS, ["data_tools/helpers.cpp"], cxx_std=17, optional=True)]
if sys.platform == "linux" and platform.machine() == "x86_64":
    EXTENSIONS.append(KernelExtension())

setup(ext_modules=EXTENSIONS, cmdclass={"build_ext": OptionalBuild, "sdist": WholeSdist})
