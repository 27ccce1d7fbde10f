"""What becomes of a request once CUDA has started, on machines made up for it."""

from __future__ import annotations

import pytest

from gpumagic.gpu_select import variables
from gpumagic.gpu_select.apply import NotSelected, apply
from gpumagic.gpu_select.request import read
from tests.gpu_select.machines import Driver, Nobody, machine


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch, tmp_path):
    """Neither now nor when the process was started."""
    (tmp_path / "environ").write_text("HOME=/")
    monkeypatch.setattr(variables, "_AT_START", tmp_path / "environ")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


def late(shown, words="free"):
    """What is answered where CUDA shows these GPUs already."""
    return apply(read(words), Driver(machine(), shown), Nobody())


def test_free_gpus_need_a_restart_once_cuda_has_started():
    """Whatever is visible then is used by this process, and not free any more."""
    with pytest.raises(NotSelected) as refused:
        late((0, 3))

    assert "CUDA has started" in refused.value.problem
    assert "--restart" in refused.value.hint


def test_a_visible_gpu_is_made_the_current_one():
    """Beside another one it can be had without a restart."""
    with pytest.raises(NotSelected) as refused:
        late((0, 3), "3")

    assert "GPU 3 is cuda:1: torch.cuda.set_device(1)" in refused.value.hint


def test_what_is_visible_already_needs_no_choice():
    """The same request once more is answered by what CUDA shows."""
    report = late((2, 1), "2,1")

    assert report.mapping() == "cuda:0 is GPU 2, cuda:1 is GPU 1"
