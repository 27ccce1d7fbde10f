"""What an engine does when it is asked: it answers as data, through its own outputs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import joining, on_rank
from gpumagic.gpu_ranks.answers import MIME
from gpumagic.gpu_ranks.lookout import Lookout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpumagic.gpu_ranks.meeting import Meeting


def answer(request: str) -> None:
    """Do what was asked, and say where this engine sits then."""
    asked = json.loads(request)
    if asked["kind"] == "run":
        _run(asked)
        return
    kinds: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
        "seat": lambda _: None,
        "warm": lambda _: on_rank.warm_up(),
        "meet": joining.meet,
        "join": joining.join,
        "leave": lambda _: joining.end_group(),
        "choices": lambda _: {"choices": on_rank.choices()},
        "try": lambda asked: joining.choose(asked, dry_run=True),
        "choose": lambda asked: joining.choose(asked, dry_run=False),
    }
    try:
        more = kinds[asked["kind"]](asked)
    except GpuMagicError as error:
        more = {"refused": error.problem}
    _say(on_rank.seat(asked["engine"]) | (more or {}))


def _say(said: dict[str, Any]) -> None:
    """Publish it under a kind of our own: no front end shows it."""
    get_ipython().display_pub.publish({MIME: said, "text/plain": ""})


def _run(asked: dict[str, Any]) -> None:
    """Run a cell here as if it had been typed here, and say what it did."""
    shell, ranks = get_ipython(), asked["ranks"]
    measured = on_rank.Measured()
    met: Meeting | None = None

    def together() -> None:
        nonlocal met
        met = joining.meet_all(asked["key"], ranks)

    rank = on_rank.group()[0]
    try:
        with (
            _numbered(shell, asked.get("number")),
            Lookout(_say, rank=rank),
            on_rank.measuring(engine=asked["engine"], together=together) as measured,
        ):
            outcome = _run_as_here(shell, asked["cell"])
            measured.error = outcome.error_before_exec or outcome.error_in_exec
    except Exception:
        if measured.said is None:
            raise  # ours: what a device says at the end is among what is said
    finally:
        if measured.said is not None:
            on_rank.warm_up()  # where this cell was the one that has imported torch
            offset = dict[str, int]()
            with contextlib.suppress(RuntimeError):  # the group has ended meanwhile
                offset = met.offset() if met is not None else {}
            _say(on_rank.fitting(measured.said | offset, ranks))


@contextlib.contextmanager
def _numbered(shell: Any, number: int | None) -> Iterator[None]:
    """Let a cell have the notebook's number in errors: engines count as they come."""
    before = shell.execution_count
    shell.execution_count = before if number is None else number
    try:
        yield
    finally:
        shell.execution_count = before


def _run_as_here(shell: Any, cell: str) -> Any:
    """Run a cell as though it had been typed here."""
    transformed = None
    with contextlib.suppress(Exception):  # it is told where the cell is run
        transformed = shell.transform_cell(cell)
    if not transformed or not shell.should_run_async(
        cell, transformed_cell=transformed
    ):
        return shell.run_cell(cell, store_history=False)
    running = shell.run_cell_async(
        cell, store_history=False, transformed_cell=transformed
    )
    # On a loop of its own: on the engine's, this very line is being run.
    engines = asyncio.get_running_loop()
    asyncio._set_running_loop(None)  # noqa: SLF001 -- for what runs loops, as this does
    try:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            loop = runner.get_loop()
            task = loop.create_task(running)
            try:
                return loop.run_until_complete(task)
            except KeyboardInterrupt as stopped:
                task.cancel()
                outcome = loop.run_until_complete(task)
                outcome.error_in_exec = stopped
                return outcome
    finally:
        asyncio._set_running_loop(engines)  # noqa: SLF001
