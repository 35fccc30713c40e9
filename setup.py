"""Compile data_tools._helpers when there is a compiler; put into the source archive what a clone holds.

All else about the package is in pyproject.toml.
"""

import sys

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup
from setuptools.command.sdist import sdist


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


class WholeSdist(sdist):
    """Beside the packages: the tests and what they read, so that who packages it anew can run them."""

    FOLDERS = ("tests", "scripts", ".ci")
    FILES = ("*.md", "constraints.txt", ".editorconfig", ".gitignore", ".pre-commit-config.yaml")

    def make_distribution(self):
        for folder in self.FOLDERS:
            self.filelist.graft(folder)
        for pattern in self.FILES:
            self.filelist.include(pattern)
        self.filelist.global_exclude("*.py[co]")
        super().make_distribution()


setup(
    ext_modules=[Pybind11Extension("data_tools._helpers", ["data_tools/helpers.cpp"], cxx_std=17)],
    cmdclass={"build_ext": OptionalBuild, "sdist": WholeSdist},
)
