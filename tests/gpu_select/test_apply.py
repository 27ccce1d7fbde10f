"""What becomes of a request once CUDA has started, on machines made up for it."""

from __future__ import annotations

import pytest

from gpumagic.gpu_select import variables
from gpumagic.gpu_select.apply import NotSelected, apply
from gpumagic.gpu_select.report import Action
from gpumagic.gpu_select.request import read
from tests.gpu_select.machines import Driver, Nobody, gpu, machine

ONE_BUSY = machine(
    gpu(0, used_gib=70, pids=[9999997]), *(gpu(index) for index in (1, 2, 3))
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch, tmp_path):
    """Neither now nor when the process was started."""
    (tmp_path / "environ").write_text("HOME=/")
    monkeypatch.setattr(variables, "_AT_START", tmp_path / "environ")
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)


def late(shown, words="free", there=ONE_BUSY, **options):
    """What is answered where CUDA shows these GPUs already."""
    return apply(read(words, **options), Driver(there, shown), Nobody())


def test_free_gpus_that_are_visible_already_need_no_choice():
    """Those that CUDA shows are meant, in the order in which it shows them."""
    for shown in [(2,), *[(2, 1)] * 9]:  # of equals, chance takes one first
        assert late(shown, n=len(shown)).action is Action.UNCHANGED


def test_a_free_gpu_among_those_shown_is_made_the_current_one():
    """Beside a busy one it can be had without a restart."""
    with pytest.raises(NotSelected) as refused:
        late((0, 3))

    assert "GPU 3 is cuda:1: torch.cuda.set_device(1)" in refused.value.hint


@pytest.mark.parametrize(("shown", "options"), [((0,), {}), ((), {}), ((1,), {"n": 2})])
def test_free_gpus_that_are_not_shown_need_a_restart(shown, options):
    """Where too few of those that CUDA shows are free, others of the machine are."""
    with pytest.raises(NotSelected) as refused:
        late(shown, **options)

    assert "CUDA has started" in refused.value.problem
    assert "set_device" not in refused.value.hint
    assert "--restart" in refused.value.hint


def test_too_few_free_gpus_are_told_with_the_reason_for_each():
    """A restart would not help: the refusal is the one of before the start."""
    with pytest.raises(NotSelected) as refused:
        late((0,), there=machine(gpu(0, used_gib=70, pids=[9999997])))

    assert "CUDA has started" not in refused.value.problem
    (row,) = refused.value.report.rows
    assert row.why
