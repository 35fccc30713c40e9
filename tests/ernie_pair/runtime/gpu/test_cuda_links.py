"""CUDA links in Paddle's folder: only those that the command has made are ever changed."""

import json
import os
from importlib import metadata
from pathlib import Path

import pytest

from data_tools.files.errors import InputError
from ernie_pair.runtime.gpu import cuda_links
from ernie_pair.runtime.gpu.builds import Build
from ernie_pair.runtime.gpu.cuda_links import NOTE, LinkCudaConfig, link_cuda, unmade_links, wanted_links

FILES = {
    "nvidia-cudnn-cu11": ("nvidia/cudnn/lib/libcudnn.so.8", "nvidia/cudnn/include/cudnn.h"),
    "nvidia_cuda_nvrtc_cu11": (
        *("nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2", "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.11.8"),
        "nvidia/cuda_nvrtc/lib/__init__.py",
    ),
    "nvidia-cuda-runtime-cu11": ("nvidia/cuda_runtime/lib/libOpenCL.so.1",),
    "nvidia-cublas-cu12": ("nvidia/cublas/lib/libcublas.so.12",),
    "somebody-cu11": ("nvidia/odd/lib/libodd.so.1",),
}
LINKS = {
    "libcudnn.so": "../../nvidia/cudnn/lib/libcudnn.so.8",
    "libcudnn.so.8": "../../nvidia/cudnn/lib/libcudnn.so.8",
    "libnvrtc.so": "../../nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2",
    "libnvrtc.so.11.2": "../../nvidia/cuda_nvrtc/lib/libnvrtc.so.11.2",
    "libnvrtc-builtins.so": "../../nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.11.8",
    "libnvrtc-builtins.so.11.8": "../../nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.11.8",
}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder of packages, in place of this environment's, with a Paddle for CUDA 11.8."""
    for name, files in FILES.items():
        for file in files:
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(file)
        info = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    (tmp_path / "paddle" / "libs").mkdir(parents=True)
    found = list(metadata.distributions(path=[str(tmp_path)]))
    monkeypatch.setattr(cuda_links.metadata, "distributions", lambda: iter(found))
    use(monkeypatch, Build("2.6.2", "11.8", False, tmp_path / "paddle"))
    return tmp_path


def use(monkeypatch, build):
    monkeypatch.setattr(cuda_links, "installed_build", lambda: build)
    return build


def links_in(packages):
    folder = packages / "paddle" / "libs"
    return {path.name: os.readlink(path) for path in folder.iterdir() if path.is_symlink()}


def test_libraries_are_linked_and_a_second_run_changes_nothing(packages, capsys):
    link_cuda(LinkCudaConfig())
    folder = packages / "paddle" / "libs"
    assert links_in(packages) == LINKS and json.loads((folder / NOTE).read_text()) == LINKS
    assert (folder / "libcudnn.so").read_text() == "nvidia/cudnn/lib/libcudnn.so.8"
    assert capsys.readouterr().out == f"links     6 in {folder}: 6 made, 0 removed\n"
    before = {path: path.lstat().st_mtime_ns for path in folder.iterdir()}
    folder.chmod(0o555)
    try:
        link_cuda(LinkCudaConfig())
    finally:
        folder.chmod(0o755)
    assert {path: path.lstat().st_mtime_ns for path in folder.iterdir()} == before
    assert capsys.readouterr().out.endswith("0 made, 0 removed\n")


def test_foreign_files_are_left_alone_and_reported(packages, capsys):
    folder = packages / "paddle" / "libs"
    (folder / "libcudnn.so").write_text("mine")
    (folder / "libnvrtc.so").symlink_to("/usr/local/cuda/lib64/libnvrtc.so")
    (folder / "libblas.so.3").write_text("Paddle's")
    link_cuda(LinkCudaConfig())
    said = capsys.readouterr().out
    assert f"left      {folder}/libcudnn.so, which this command did not make\n" in said
    assert f"left      {folder}/libnvrtc.so, " in said and "links     4 in" in said
    assert (folder / "libcudnn.so").read_text() == "mine"
    assert os.readlink(folder / "libnvrtc.so") == "/usr/local/cuda/lib64/libnvrtc.so"
    link_cuda(LinkCudaConfig(remove=True))
    left = {path.name for path in folder.iterdir()}
    assert left == {"libcudnn.so", "libnvrtc.so", "libblas.so.3", NOTE}


def test_links_of_the_user_are_left_alone_and_reported(packages, capsys):
    link_cuda(LinkCudaConfig())
    link = packages / "paddle" / "libs" / "libcudnn.so"
    link.unlink()
    link.symlink_to("/opt/cudnn/libcudnn.so")
    link_cuda(LinkCudaConfig())
    link_cuda(LinkCudaConfig(remove=True))
    assert os.readlink(link) == "/opt/cudnn/libcudnn.so" and list(links_in(packages)) == ["libcudnn.so"]
    assert f"left      {link}, " in capsys.readouterr().out
    link.unlink()
    link.symlink_to(LINKS["libcudnn.so"])
    link_cuda(LinkCudaConfig())
    link_cuda(LinkCudaConfig(remove=True))
    assert links_in(packages) == {"libcudnn.so": LINKS["libcudnn.so"]}


def test_links_are_updated_for_other_packages_and_builds(packages, monkeypatch):
    """A package upgrade, the CUDA 12 build, Paddle 3, which finds its libraries itself, the CPU build."""
    link_cuda(LinkCudaConfig())
    folder = packages / "paddle" / "libs"
    note = folder / NOTE
    before = note.read_text().replace("libcudnn.so.8", "libcudnn.so.7")  # as an earlier package had it
    note.write_text(before)
    for name in ("libcudnn.so", "libcudnn.so.8"):
        (folder / name).unlink()
    (folder / "libcudnn.so").symlink_to("../../nvidia/cudnn/lib/libcudnn.so.7")
    link_cuda(LinkCudaConfig())
    assert links_in(packages) == LINKS
    build = use(monkeypatch, Build("2.6.2", "12.0", False, packages / "paddle"))
    assert set(unmade_links(build)) == {*LINKS, "libcublas.so", "libcublas.so.12"}
    link_cuda(LinkCudaConfig())
    assert set(links_in(packages)) == {"libcublas.so", "libcublas.so.12"} and not unmade_links(build)
    for facts in (("3.3.1", "12.6", True), ("2.6.2", "", False)):
        build = use(monkeypatch, Build(*facts, packages / "paddle"))
        assert wanted_links(build) == {}
        link_cuda(LinkCudaConfig())
        assert links_in(packages) == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"../../mine": "x"}', '{"libcudnn.so": 3}', '{"libcudnn.so": "elsewhere"}']
)
def test_an_invalid_link_record_removes_nothing(packages, text):
    folder = packages / "paddle" / "libs"
    (packages / "mine").symlink_to("x")
    (folder / "libcudnn.so").symlink_to("somewhere")
    (folder / NOTE).write_text(text)
    link_cuda(LinkCudaConfig(remove=True))
    assert os.readlink(folder / "libcudnn.so") == "somewhere" and os.readlink(packages / "mine") == "x"


def test_an_interrupted_run_can_be_completed_and_removed(packages, monkeypatch):
    link, made = os.symlink, []

    def fails_at_the_third(target, path):
        made.append(path)
        if len(made) == 3:
            raise OSError(28, "No space left on device", str(path))
        link(target, path)

    monkeypatch.setattr(cuda_links.os, "symlink", fails_at_the_third)
    with pytest.raises(OSError, match="No space"):
        link_cuda(LinkCudaConfig())
    monkeypatch.setattr(cuda_links.os, "symlink", link)
    assert len(links_in(packages)) == 2
    link_cuda(LinkCudaConfig())
    assert links_in(packages) == LINKS
    link_cuda(LinkCudaConfig(remove=True))
    assert links_in(packages) == {}


def test_missing_packages_and_missing_paddle_are_errors(packages, monkeypatch):
    monkeypatch.setattr(cuda_links.metadata, "distributions", lambda: iter(()))
    with pytest.raises(InputError, match="none of the packages nvidia-.-cu11 is installed.*pip install"):
        link_cuda(LinkCudaConfig())
    use(monkeypatch, None)
    with pytest.raises(InputError, match="Paddle is not installed"):
        link_cuda(LinkCudaConfig())


def test_starting_without_links_names_the_link_command(packages, monkeypatch):
    build = cuda_links.installed_build()
    monkeypatch.setattr(cuda_links, "error_of", lambda name: "not here")
    with pytest.raises(InputError, match="libcublas.so, libcublasLt.so, libcudnn.so, libnvrtc.so; run ernie"):
        cuda_links.refuse_missing_libraries(build, 1)
    for name in (*cuda_links.FIRST, *cuda_links.OF_SEVERAL):
        (packages / "nvidia" / "cudnn" / "lib" / f"{name}.8").touch()
    for name in cuda_links.FIRST:
        (build.libraries / name).write_text("")
    cuda_links.refuse_missing_libraries(build, 1)
    with pytest.raises(InputError, match="cannot find libnccl.so; run ernie-pair doctor --link_cuda"):
        cuda_links.refuse_missing_libraries(build, 2)
    monkeypatch.setattr(cuda_links, "error_of", lambda name: "")  # the system's CUDA has it
    cuda_links.refuse_missing_libraries(build, 2)


def test_starting_without_the_right_links_is_refused(packages):
    link_cuda(LinkCudaConfig())
    build = Build("3.3.1", "12.6", True, packages / "paddle")
    with pytest.raises(InputError, match="are not those of Paddle 3.3.1; run ernie-pair doctor --link_cuda"):
        cuda_links.refuse_missing_libraries(build, 1)
    cuda_links.refuse_missing_libraries(build._replace(folder=Path("/no/such")), 1)
