"""Results that were shown: where IPython holds them, and how all of them let go."""

from __future__ import annotations

import weakref

from gpumagic.gpu_mem.names import drop_outputs, shown_results


class Big:
    """Stands in for a tensor."""


class Namespace:
    """An object with the attributes that it is given."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def shell_after(*shown, **variables):
    """A shell as IPython leaves it after cells that have shown these results."""
    history = dict(enumerate(shown, 1))
    latest = [*reversed(shown), "", "", ""][:3]
    names = dict(zip(("_", "__", "___"), latest, strict=True))
    numbered = {f"_{number}": value for number, value in history.items()}
    return Namespace(
        user_ns={"Out": history, "_oh": history, "In": [""], **names, **numbered}
        | variables,
        user_ns_hidden={**names, **numbered},
        displayhook=Namespace(**names, exec_result=None),
        history_manager=Namespace(output_hist=history),
        last_execution_result=Namespace(result=shown[-1] if shown else None),
    )


def test_a_result_is_named_once_with_all_its_places():
    """What one result is held by is one row, and `Out[n]` comes first."""
    shown = shown_results(shell_after(Big(), Big()))

    assert [places[:2] for _, places in shown] == [("Out[1]", "__"), ("Out[2]", "_")]
    assert [len(places) for _, places in shown] == [6, 7]


def test_dropping_frees_every_result_at_once():
    """No result lives on, however many places have held it."""
    results = [Big() for _ in range(5)]
    gone = [weakref.ref(each) for each in results]
    shell = shell_after(*results)
    del results

    drop_outputs(shell)

    assert [each() for each in gone] == [None] * 5
    assert shown_results(shell) == []


def test_the_shell_is_as_before_its_first_result():
    """The three names are empty strings, as IPython itself begins; `In` stays."""
    shell = shell_after(Big())
    fresh = shell_after()

    drop_outputs(shell)

    assert shell.user_ns == fresh.user_ns
    assert shell.user_ns_hidden == fresh.user_ns_hidden
    assert vars(shell.displayhook) == vars(fresh.displayhook)


def test_what_reset_has_left_is_found():
    """`%reset -f out` leaves a hidden copy: it is named, and it goes."""
    big = Big()
    gone = weakref.ref(big)
    shell = shell_after()
    shell.user_ns_hidden["_"] = big
    del big

    places = [places for _, places in shown_results(shell)]
    drop_outputs(shell)

    assert places == [("hidden _",)]
    assert gone() is None
