"""Errors and results that are over: where they are held, and how they let go."""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from types import SimpleNamespace

import pytest

from gpumagic.gpu_mem.names import (
    drop_outputs,
    frames_with_locals,
    held_errors,
    running_locals,
    shown_results,
)


class Big:
    """Stands in for a tensor."""


class Formatter(SimpleNamespace):
    """What IPython has for making text of tracebacks."""

    def structured_traceback(self):
        """Only its name counts."""


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


# --------------------------------------------------------- looking changes nothing


@pytest.mark.parametrize("frames", ["cleared", "dropped"])
def test_looking_leaves_no_second_set_of_references(frames):
    """After a look the locals go with their frames, as they would have without."""
    big = Big()
    gone = weakref.ref(big)
    error = caught(failing, big)
    del big

    found = names_held(error, gone())
    if frames == "cleared":
        traceback.clear_frames(error.__traceback__)
    error.__traceback__ = None

    assert found
    assert gone() is None


def test_locals_of_functions_that_run_go_with_them():
    """Nothing that looking leaves behind waits for the collector to let go of them."""

    def train():
        big = Big()
        return len(list(running_locals())), weakref.ref(big)

    count, gone = train()
    assert count
    assert gone() is None


# ------------------------------------------------------------------ the holders


def shell_after(error):
    """A shell as it is after a cell with this error."""
    sys.last_value, sys.last_traceback = error, error.__traceback__
    return SimpleNamespace(
        user_ns={},
        InteractiveTB=Formatter(tb=error.__traceback__, pdb=None),
        last_execution_result=SimpleNamespace(error_in_exec=error),
    )


def test_one_error_counts_once_in_all_its_places():
    """An error and its traceback, also from its second step on, count as one."""
    shell = shell_after(caught(outer, Big()))
    shell.InteractiveTB.tb = shell.InteractiveTB.tb.tb_next

    assert held_errors(shell) == [sys.last_value]


# ------------------------------------------------------------------ shown results


def shell_showing(*shown, **variables):
    """A shell as IPython leaves it after cells that have shown these results."""
    history = dict(enumerate(shown, 1))
    latest = [*reversed(shown), "", "", ""][:3]
    names = dict(zip(("_", "__", "___"), latest, strict=True))
    numbered = {f"_{number}": value for number, value in history.items()}
    return SimpleNamespace(
        user_ns={"Out": history, "_oh": history, "In": [""], **names, **numbered}
        | variables,
        user_ns_hidden={**names, **numbered},
        displayhook=SimpleNamespace(**names, exec_result=None),
        history_manager=SimpleNamespace(output_hist=history),
        last_execution_result=SimpleNamespace(result=shown[-1] if shown else None),
    )


def test_a_result_is_named_once_with_all_its_places():
    """What one result is held by is one row, and `Out[n]` comes first."""
    shown = shown_results(shell_showing(Big(), Big()))

    assert [places[:2] for _, places in shown] == [("Out[1]", "__"), ("Out[2]", "_")]
    assert [len(places) for _, places in shown] == [6, 7]


def test_the_shell_is_as_before_its_first_result():
    """The three names are empty strings, as IPython itself begins; `In` stays."""
    shell = shell_showing(Big())
    fresh = shell_showing()

    drop_outputs(shell)

    assert shell.user_ns == fresh.user_ns
    assert shell.user_ns_hidden == fresh.user_ns_hidden
    assert vars(shell.displayhook) == vars(fresh.displayhook)


def test_what_reset_has_left_is_found():
    """`%reset -f out` leaves a hidden copy: it is named, and it goes."""
    big = Big()
    gone = weakref.ref(big)
    shell = shell_showing()
    shell.user_ns_hidden["_"] = big
    del big

    places = [places for _, places in shown_results(shell)]
    drop_outputs(shell)

    assert places == [("hidden _",)]
    assert gone() is None
