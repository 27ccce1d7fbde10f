"""What an engine does when it is asked: it answers as data, through its own outputs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from IPython import get_ipython

from gpumagic.devices.driver import open_driver
from gpumagic.gpu_ranks import joining, leaving, on_rank, reducing
from gpumagic.gpu_ranks.analysis import MOST_TOLD
from gpumagic.gpu_ranks.answers import FREE, MIME
from gpumagic.gpu_ranks.lookout import Lookout

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


def answer(request: str) -> None:
    """Do what was asked, and say what came of it."""
    asked = json.loads(request)
    kinds: dict[str, Callable[[dict[str, Any]], None]] = {
        "seat": lambda asked: _say(on_rank.seat(asked["engine"])),
        "warm": _warm_up,
        "run": _run,
        "backends": lambda asked: _say(joining.backends(asked)),
        "meet": lambda asked: _say(joining.meet(asked)),
        "part": lambda asked: _say(joining.part(asked)),
        "reach": lambda asked: _say(joining.reach(asked)),
        "join": lambda asked: _say(joining.join(asked)),
        "choices": lambda asked: _say(joining.choices(asked)),
        "leave": lambda asked: _say(leaving.leave(asked)),
        "choose": lambda asked: _say(joining.choose(asked)),
    }
    _listen(get_ipython().kernel)
    kinds[asked["kind"]](asked)


def _listen(kernel: Any) -> None:
    """Have the engine end what it waits for when it is told so beside its line.

    A thread of its own hears of that, as of signals: this one may wait in C++.
    """

    def free(stream: Any, ident: Any, parent: Any) -> None:
        leaving.free()
        kernel.session.send(
            stream, "gpumagic_free_reply", {"status": "ok"}, parent=parent, ident=ident
        )

    handlers = getattr(kernel, "control_handlers", None)
    if handlers is not None:
        handlers[FREE] = free


def _say(said: dict[str, Any]) -> None:
    """Publish it under a kind of our own: no front end shows it."""
    get_ipython().display_pub.publish({MIME: said, "text/plain": ""})


def _warm_up(asked: dict[str, Any]) -> None:
    on_rank.warm_up()
    _say(on_rank.seat(asked["engine"]))


def _run(asked: dict[str, Any]) -> None:
    """Run a cell here as if it had been typed here, and say what it did."""
    shell, engine = get_ipython(), asked["engine"]
    rank, _, _ = on_rank.group()
    measured = on_rank.Measured()
    clocks: joining.Clocks | None = None

    def together() -> None:
        nonlocal clocks
        clocks = joining.meet_all(asked["key"], asked["ranks"])

    try:
        with (
            _numbered(shell, asked.get("number")),
            Lookout(
                _say,
                rank=rank,
                engine=engine,
                driver=open_driver,
                device=on_rank.current_device(),
            ),
            on_rank.measuring(engine=engine, together=together) as measured,
        ):
            outcome = _run_as_here(shell, asked["cell"])
            measured.error = outcome.error_before_exec or outcome.error_in_exec
    except Exception:
        if measured.said is None:
            raise  # ours: what a device says at the end is among what is said
    finally:
        if measured.said is not None:
            on_rank.warm_up()  # where this cell was the one that has imported torch
            clocked = measured.said | (clocks.told() if clocks is not None else {})
            _say(_summed_if_many(clocked, asked))
            joining.forget_cells()


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
    if (transformed := _awaiting(shell, cell)) is None:
        return shell.run_cell(cell, store_history=False)
    running = shell.run_cell_async(
        cell, store_history=False, transformed_cell=transformed
    )
    return _awaited(running)


def _awaiting(shell: Any, cell: str) -> str | None:
    """The cell as Python, if it has to be awaited."""
    try:
        transformed: str = shell.transform_cell(cell)
    except Exception:  # noqa: BLE001 -- it is told where the cell is run
        return None
    awaits = shell.should_run_async(cell, transformed_cell=transformed)
    return transformed if awaits else None


def _awaited(running: Coroutine[Any, Any, Any]) -> Any:
    """Wait on a loop of its own: on the engine's, this very line is being run."""
    engines = asyncio.get_running_loop()
    asyncio._set_running_loop(None)  # noqa: SLF001 -- for what runs loops, as this does
    try:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return _until_it_ends(runner.get_loop(), running)
    finally:
        asyncio._set_running_loop(engines)  # noqa: SLF001


def _until_it_ends(
    loop: asyncio.AbstractEventLoop, running: Coroutine[Any, Any, Any]
) -> Any:
    """What came of it, though Ctrl-C comes where nothing of the cell's was running."""
    task = loop.create_task(running)
    try:
        return loop.run_until_complete(task)
    except KeyboardInterrupt as stopped:
        task.cancel()
        outcome = loop.run_until_complete(task)
        outcome.error_in_exec = stopped
        return outcome


def _summed_if_many(said: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """All that it did; of very many ranks that are one group the sums of it."""
    _, world_size, _ = on_rank.group()
    most_whole = asked.get("most_whole", MOST_TOLD)
    if asked["ranks"] <= most_whole or world_size != asked["ranks"]:
        return said
    store = joining.noted(f"gpumagic/sums/{asked['key']}")
    return reducing.summed_on_engine(said, asked["key"], store) or said
