"""The guard is set, undone, and honest about where it does not help."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gpumagic.devices.protocols import Inventory
from gpumagic.gpu_select import watch
from gpumagic.gpu_select.watch import GUARD, Guard
from gpumagic.notebook.session import Session
from tests.fakes.run import run_python

SOUND = Inventory(driver_version="590.48")
CUDA_TORCH = SimpleNamespace(
    _C=SimpleNamespace(_cuda_getDeviceCount=int),
    cuda=SimpleNamespace(_nvml_based_avail=bool),
)


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)


@pytest.fixture
def session(monkeypatch):
    """A session in an environment without the variable."""
    monkeypatch.delenv(GUARD, raising=False)
    session = Session()
    yield session
    session.restore_environment()


def test_it_is_on_from_the_loading_until_the_unloading(session):
    """The variable is there while the extension is, and no longer."""
    Guard(session).install()
    assert os.environ[GUARD] == "1"
    assert watch.guard_state(SOUND, None).on
    session.restore_environment()
    assert GUARD not in os.environ
    assert not watch.guard_state(SOUND, None).on


@pytest.mark.parametrize("own", ["0", "1", ""])
def test_a_value_of_the_users_own_is_left(session, monkeypatch, own):
    """Loading does not touch it; asked for by name the guard can still be turned."""
    monkeypatch.setenv(GUARD, own)
    ours = Guard(session)
    ours.install()
    assert os.environ[GUARD] == own
    ours.turn(on=True)
    assert watch.guard_state(SOUND, None).on
    ours.turn(on=False)
    assert not watch.guard_state(SOUND, None).on
    session.restore_environment()
    assert os.environ[GUARD] == own


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        ((SOUND, "MIG-1234", None), "MIG"),
        ((Inventory(problem="library mismatch"), None, None), "library mismatch"),
        ((SOUND, "0", SimpleNamespace(_C=object(), cuda=object())), "without CUDA"),
        ((SOUND, "0", SimpleNamespace(_C=CUDA_TORCH._C, cuda=object())), "too old"),
        ((SOUND, "0,1", CUDA_TORCH), None),
        ((SOUND, None, None), None),
    ],
)
def test_where_it_does_not_help_it_says_why(session, monkeypatch, machine, why):
    """MIG masks, a failing NVML and other builds of torch defeat it."""
    inventory, mask, torch = machine
    Guard(session).install()
    if torch is not None:
        monkeypatch.setitem(__import__("sys").modules, "torch", torch)
    found = watch.guard_state(inventory, mask)
    assert found.on
    assert (found.defeated_by is None) == (why is None)
    assert why is None or why in found.defeated_by


def test_the_users_zero_is_given_as_the_reason(session, monkeypatch):
    """Where the user has switched torch's check off, that is what is said."""
    monkeypatch.setenv(GUARD, "0")
    Guard(session).install()
    found = watch.guard_state(SOUND, None)
    assert (found.on, found.defeated_by) == (False, f"{GUARD} is set to '0'")


@pytest.mark.parametrize("guarded", [True, False])
def test_is_available_starts_cuda_only_without_the_guard(guarded):
    """With the guard, torch says that CUDA is available and never reaches cuInit."""
    if not _torch_has_cuda():
        pytest.skip("the installed torch is not built for CUDA")
    run = run_python(f"""
        import json, torch
        from gpumagic.gpu_select.watch import Guard
        from gpumagic.notebook.session import Session
        if {guarded}:
            Guard(Session()).install()
        print(json.dumps(torch.cuda.is_available()))
    """)
    assert bool(run.cuinit_calls()) == (not guarded)
    assert run.json() or not guarded


def _torch_has_cuda():
    from gpumagic.devices.torch_build import read_torch_build

    build = read_torch_build()
    return build is not None and build.cuda is not None
