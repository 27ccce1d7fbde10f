"""Errors that are over: where they are held, what they keep alive, how they let go."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref

import pytest

from gpumagic.gpu_mem.names import (
    drop_errors,
    frames_with_locals,
    held_errors,
    locals_of,
)


class Big:
    """Stands in for a tensor."""


class Formatter:
    """What IPython has for making text of tracebacks."""

    def __init__(self):
        self.tb = None
        self.pdb = None

    def structured_traceback(self):
        """Only its name counts."""


class Result:
    """What IPython keeps of a cell."""

    def __init__(self, error=None, before=None):
        self.error_in_exec = error
        self.error_before_exec = before
        self.result = None


class Shell:
    """As much of an IPython shell as holds errors."""

    def __init__(self):
        self.user_ns, self.user_ns_hidden = {}, {}
        self.InteractiveTB, self.SyntaxTB = Formatter(), Formatter()
        self.last_execution_result = None


@pytest.fixture(autouse=True)
def _no_last_error():
    names = ("last_exc", "last_value", "last_traceback", "last_type")
    for name in names:
        vars(sys).pop(name, None)
    yield
    for name in names:
        vars(sys).pop(name, None)


def failing(value):
    """Raise with a local called `logits`."""
    logits = value
    raise ValueError("no good", len(vars(logits)))


def outer(value):
    """Fail further inside, with a local called `mine`."""
    mine = value
    try:
        failing(mine)
    except ValueError as error:
        raise RuntimeError("worse") from error


def caught(function, *arguments):
    """The error that a call raises."""
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - all of them are wanted
        return error
    return None


def names_held(error, value):
    """The places of a value under an error."""
    return {where for where, held in frames_with_locals(error) if held is value}


# --------------------------------------------------------------- what is alive


def test_each_local_of_each_frame_is_named():
    """A value is found in every frame that the error keeps, also those of its cause."""
    big = Big()

    error = caught(outer, big)

    assert {"logits in failing", "mine in outer", "value in outer"} <= names_held(
        error, big
    )


def test_what_an_error_carries_itself_is_named():
    """Arguments, attributes and the object of an AttributeError are alive as well."""
    big = Big()
    carried = ValueError("bad", big)
    carried.extra = big

    found = names_held(carried, big) | names_held(caught(getattr, big, "absent"), big)

    assert "extra in ValueError" in found
    assert "obj in AttributeError" in found
    assert any(
        where == "args in ValueError" and big in held
        for where, held in frames_with_locals(carried)
        if type(held) is tuple
    )


def test_properties_of_an_error_are_not_asked():
    """No code of the user's runs to find what an error carries."""

    class Hostile(AttributeError):
        @property
        def obj(self):
            raise SystemExit

        @property
        def args(self):
            raise SystemExit

    assert names_held(Hostile("no"), Big()) == set()


def test_frames_that_called_the_one_that_caught_it_are_found():
    """A caller that has returned since lives on in the frame that it called."""

    def caller(value):
        above = value  # noqa: F841 - it is looked for
        return caught(failing, Big())

    big = Big()
    error = caller(big)

    assert "above in caller" in names_held(error, big)


def test_frames_that_run_are_left_out():
    """What a running function has is no leak, here and in other threads."""
    here, there = Big(), Big()
    inside, go_on, errors = threading.Event(), threading.Event(), []

    def elsewhere():
        value = there  # noqa: F841 - it is looked for
        errors.append(caught(failing, Big()))
        inside.set()
        go_on.wait()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    inside.wait()

    try:
        found = names_held(caught(failing, Big()), here)
        found |= names_held(errors[0], there)
    finally:
        go_on.set()
        thread.join()

    assert found == set()


def test_namespaces_that_live_anyway_are_left_out():
    """The frame of a cell holds the user's variables, which need no error to live."""
    big, cells = Big(), {"failing": failing}
    cells["big"] = big
    error = caught(exec, "failing(big)", cells)

    anyway = {where for where, _ in frames_with_locals(error, {id(cells)})}

    assert "big in <module>" in names_held(error, big)
    assert "big in <module>" not in anyway
    assert "logits in failing" in anyway


# --------------------------------------------------------- looking changes nothing


def innermost(error):
    """The frame that raised it."""
    step = error.__traceback__
    while step.tb_next is not None:
        step = step.tb_next
    return step.tb_frame


def test_looking_leaves_no_second_set_of_references():
    """After a look `frame.clear()` frees the locals, as it would have without."""
    big = Big()
    gone = weakref.ref(big)
    error = caught(failing, big)
    del big

    found = names_held(error, gone())
    traceback.clear_frames(error.__traceback__)

    assert found
    assert gone() is None


def test_a_look_frees_nothing_of_a_frame_that_was_cleared():
    """What the copied recipe has left in the frame is found, and is still there."""
    big = Big()
    error = caught(failing, big)
    frame = innermost(error)
    assert frame.f_locals["logits"] is big  # as IPython's formatters read it
    frame.clear()

    first, again = locals_of(frame), locals_of(frame)

    if sys.version_info < (3, 13):
        assert first["logits"] is again["logits"] is big


# ------------------------------------------------------------------ the holders


def shell_after(error):
    """A shell as it is after a cell with this error."""
    shell = Shell()
    shell.InteractiveTB.tb = error.__traceback__
    shell.last_execution_result = Result(error)
    sys.last_value, sys.last_traceback = error, error.__traceback__
    sys.last_type = type(error)
    return shell


def test_one_error_counts_once_in_all_its_places():
    """An error and its traceback, also from its second step on, count as one."""
    shell = shell_after(caught(outer, Big()))
    shell.InteractiveTB.tb = shell.InteractiveTB.tb.tb_next

    assert held_errors(shell) == [sys.last_value]


def test_dropping_frees_everything_at_once():
    """Without a collection nothing of the error is left."""
    big = Big()
    gone = weakref.ref(big)
    shell = shell_after(caught(outer, big))
    del big

    gc.disable()
    try:
        dropped = drop_errors(shell)
    finally:
        gc.enable()

    assert gone() is None
    assert dropped
    assert not held_errors(shell)
    assert not hasattr(sys, "last_type")
