"""Which torch would be imported is read from its files, and none is imported."""

from __future__ import annotations

import sys

import pytest

from gpumagic.devices.torch_build import TorchBuild, read_torch_build

SAID = """
__version__ = "2.11.0+cu130"
debug = False
cuda: str | None = "13.0"
hip = None
git_version = "70d99e99"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder that Python looks into first; torch is not imported yet."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def put(path, text=""):
    """A file, in its folder."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_the_version_file_is_read(folder):
    """What torch was built for stands there; the package is not run."""
    put(folder / "torch/__init__.py", "raise ImportError")
    put(folder / "torch/version.py", SAID)

    assert read_torch_build() == TorchBuild("2.11.0+cu130", "13.0", None, None)
    assert "torch" not in sys.modules


def test_a_file_in_its_place_is_named(folder):
    """A script of one's own that is called like the library is what hides it."""
    put(folder / "torch.py")

    assert read_torch_build().hidden_by == str(folder / "torch.py")


def test_a_stand_in_that_python_cannot_find_is_no_torch(monkeypatch):
    """Nor is None, which somebody has put there so that it is not imported."""
    monkeypatch.setitem(sys.modules, "torch", None)

    assert read_torch_build() is None
