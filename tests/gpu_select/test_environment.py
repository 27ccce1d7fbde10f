"""The environment in Python, in C, and as the process was started with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gpumagic.gpu_select import variables as environment
from gpumagic.gpu_select.variables import VISIBLE, at_start, changed, look_up

NAME = "GPUMAGIC_TEST_VARIABLE"
OTHER = "GPUMAGIC_TEST_OTHER"
VALUES = st.none() | st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), max_size=8
)


@pytest.fixture(autouse=True)
def _no_traces():
    """The two names are in neither environment, before and after."""
    yield
    for name in (NAME, OTHER):
        os.environ.pop(name, None)
        os.unsetenv(name)


def everywhere(name=NAME):
    """The value in Python, and the one in C."""
    variable = look_up(name)
    assert variable.c_known
    return variable.python, variable.c


def arrange(name, python, c):
    """A variable that has been put into Python's and into C's environment."""
    if python is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = python
    if c is None:
        os.unsetenv(name)
    else:
        os.putenv(name, c)


def interrupted(values):
    """What is set in the block, which the user interrupts."""
    seen = []
    with contextlib.suppress(KeyboardInterrupt), changed(values):
        seen += everywhere()
        raise KeyboardInterrupt
    return tuple(seen)


def in_a_process(code, **variables):
    """What a fresh process says that was started with these variables."""
    kept = {key: value for key, value in os.environ.items() if key != VISIBLE}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": str(Path(__file__).parents[2])} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


# ---------------------------------------------------------------- looking up


def test_a_variable_that_is_not_set_is_none_and_not_empty():
    """Unset and empty mean all and none to CUDA, and are told apart."""
    assert everywhere() == (None, None)
    os.environ[NAME] = ""
    assert everywhere() == ("", "")


def test_what_python_sets_is_seen_in_c():
    """Whatever is put into os.environ reaches getenv."""
    os.environ[NAME] = "2,0"

    assert everywhere() == ("2,0", "2,0")


def test_what_putenv_sets_is_seen_in_c_alone():
    """os.putenv reaches the driver and not os.environ."""
    os.environ[NAME] = "2"
    os.putenv(NAME, "0")

    assert everywhere() == ("2", "0")


def test_a_value_that_is_no_text_survives():
    """Bytes that are no UTF-8 come out as os.environ has them."""
    os.environb[NAME.encode()] = b"\xff0"

    assert everywhere() == ("\udcff0", "\udcff0")


def test_where_c_cannot_be_asked_its_value_is_unknown(monkeypatch):
    """A system without dlopen leaves the C value unknown rather than unset."""

    def refuse(name):
        raise TypeError(name)

    monkeypatch.setattr(ctypes, "PyDLL", refuse)
    os.environ[NAME] = "2"

    variable = look_up(NAME)
    assert (variable.python, variable.c, variable.c_known) == ("2", None, False)


# ---------------------------------------------------------------- at the start


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_the_value_at_the_start_outlives_every_change():
    """What the process was started with is known after the variable has changed."""
    told = in_a_process(
        "import os; from gpumagic.gpu_select.variables import *;"
        "os.environ[VISIBLE] = '0';"
        "print(at_start(VISIBLE), look_up(VISIBLE).at_start)",
        CUDA_VISIBLE_DEVICES="2,3",
    )

    assert told == "(True, '2,3') 2,3"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_variable_that_came_later_was_not_there_at_the_start():
    """A variable that this process has made is known to have been unset."""
    os.environ[NAME] = "0"

    assert at_start(NAME) == (True, None)


@pytest.mark.parametrize("written", [b"", b"\0\0\0", b"my worker\0\0", None])
def test_where_the_start_cannot_be_read_it_is_unknown(written, tmp_path, monkeypatch):
    """No such file, or a process title written over it: unknown, and not unset."""
    place = tmp_path / "environ"
    if written is not None:
        place.write_bytes(written)
    monkeypatch.setattr(environment, "_AT_START", place)

    assert at_start(VISIBLE) == (False, None)


def test_only_the_whole_name_counts(tmp_path, monkeypatch):
    """A variable whose name begins with the one that is meant is another one."""
    place = tmp_path / "environ"
    place.write_bytes(b"CUDA_VISIBLE_DEVICES_OLD=1\0CUDA_VISIBLE_DEVICES=a=b\0")
    monkeypatch.setattr(environment, "_AT_START", place)

    assert at_start(VISIBLE) == (True, "a=b")


# ---------------------------------------------------------------- changing


def test_a_change_stays_when_the_block_ends():
    """Set, replaced and removed, in Python and in C."""
    os.environ[OTHER] = "1"

    with changed({NAME: "2", OTHER: None}):
        assert (everywhere(), everywhere(OTHER)) == (("2", "2"), (None, None))

    assert (everywhere(), everywhere(OTHER)) == (("2", "2"), (None, None))


def test_removing_reaches_a_value_that_only_c_has():
    """None removes also what os.putenv has put there."""
    os.putenv(NAME, "0")

    with changed({NAME: None}):
        assert everywhere() == (None, None)


@hypothesis_settings(deadline=None)
@given(VALUES, VALUES, VALUES)
def test_whatever_was_there_is_back_after_a_failure(python, c, new):
    """Python's and C's value come back exactly, also where they differ."""
    arrange(NAME, python, c)

    seen = interrupted({NAME: new, OTHER: "1"})

    assert seen == (new, new)
    assert (everywhere(), everywhere(OTHER)) == ((python, c), (None, None))


def test_a_value_that_cannot_be_set_leaves_none_of_the_others_set():
    """The first variable is put back where the second cannot hold its value."""
    os.environ[NAME] = "old"

    with pytest.raises(ValueError, match="null"), changed({NAME: "2", OTHER: "a\0b"}):
        pytest.fail("the block must not run")

    assert (everywhere(), everywhere(OTHER)) == (("old", "old"), (None, None))
