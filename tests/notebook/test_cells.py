"""A body is compiled before the clock starts, and runs once between two stamps."""

from __future__ import annotations

import asyncio
import gc
import linecache
import weakref

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic.notebook import cells


class Clock:
    """In the place of the host's clock: stands still but for `pass_time`."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        """The time."""
        return self.now_ns

    def pass_time(self, milliseconds):
        """Let so much go by."""
        self.now_ns += milliseconds * 1_000_000


@pytest.fixture
def clock(monkeypatch):
    """The time that stamps are taken by, in the hands of the test."""
    clock = Clock()
    monkeypatch.setattr(cells, "perf_counter_ns", clock)
    return clock


@pytest.fixture
def shell():
    """A shell of this process with an empty namespace."""
    shell = InteractiveShell.instance()
    yield shell
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()


def test_the_traceback_of_an_error_begins_in_the_body(shell):
    """A report that reads the traceback finds the user's frames alone."""
    in_body = []

    def after(outcome):
        frame = outcome.error.__traceback__.tb_frame
        in_body.append(frame.f_locals is shell.user_ns)

    with pytest.raises(ZeroDivisionError):
        cells.run(shell, "1/0", after=after)
    assert in_body == [True]


def test_the_traceback_of_a_repeated_body_begins_in_it(shell):
    """Whoever has run it; and Ctrl-C between two runs is not said to be the body's."""
    body, elsewhere = (cells.RepeatableCell(shell, code) for code in ("1/0", "2"))
    with pytest.raises(ZeroDivisionError) as caught:
        body()

    frame = cells.own_part(body, caught.value).__traceback__.tb_frame

    assert frame.f_code.co_filename == body.name
    stopped = KeyboardInterrupt().with_traceback(caught.value.__traceback__)
    assert cells.own_part(elsewhere, stopped).__traceback__ is None


def test_a_report_that_fails_does_not_hide_the_error_of_the_cell(shell):
    """The cell's own exception goes on, with a note about ours."""

    def after(_):
        raise RuntimeError("ours")

    with pytest.raises(ZeroDivisionError) as caught:
        cells.run(shell, "1/0", after=after)
    assert "ours" in caught.value.__notes__[0]


def test_a_failed_cell_is_not_kept_alive_by_us(shell):
    """Once the exception is dropped, its frames' locals go without the collector."""

    class Big:
        pass

    shell.user_ns["Big"], shell.user_ns["refs"] = Big, (refs := [])
    shell.user_ns["ref"] = weakref.ref
    body = (
        "def f():\n"
        "    local = Big()\n"
        "    refs.append(ref(local))\n"
        "    raise ValueError\n"
        "f()"
    )
    gc.disable()
    try:
        with pytest.raises(ValueError):  # noqa: PT011 - the body's own, unnamed
            cells.run(shell, body, after=lambda _: None)
        assert refs[0]() is None
    finally:
        gc.enable()


def test_an_awaiting_body_runs_on_the_loop_that_awaits_it(shell, clock):
    """Stamps enclose the awaiting, the value comes back, `after` sees it."""
    outcomes = []
    shell.user_ns.update(asyncio=asyncio, clock=clock)
    pending = cells.run(
        shell,
        "x = await asyncio.sleep(0, 3)\nclock.pass_time(20)\nx + 1",
        after=outcomes.append,
    )
    assert outcomes == []
    clock.pass_time(70)
    assert asyncio.run(pending) == 4
    assert outcomes[0].elapsed_s == 0.02


def test_a_future_import_counts_for_later_cells_only_if_it_has_run(shell):
    """Looking at a cell, as completeness checks do, changes no compiler flag."""
    from gpumagic.notebook.cells import CellTransform

    transform = CellTransform(shell, {"gpu_doctor"})
    lines = ["%%gpu_doctor\n", "from __future__ import annotations\n"]
    before = shell.compile.flags
    assert transform(lines) == lines
    assert shell.compile.flags == before


@pytest.mark.parametrize(
    "cell",
    [
        "get_ipython().run_cell_magic('gpu_doctor', '-q', 'x = 1'); 1/0",
        "for _ in [1]: get_ipython().run_cell_magic('gpu_doctor', '-q', 'x = 1')",
    ],
)
def test_a_cell_that_is_more_than_the_magic_keeps_its_source(shell, cell):
    """Only a cell that is nothing but our magic lends its name to the body."""
    shell.run_line_magic("load_ext", "gpumagic")
    try:
        shell.run_cell(cell, store_history=True)
        assert any(
            entry[2] == [f"{cell}\n"] for entry in linecache.cache.values() if entry[1:]
        )
    finally:
        shell.run_line_magic("unload_ext", "gpumagic")
