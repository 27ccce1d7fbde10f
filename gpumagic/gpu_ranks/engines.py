"""Asks the engines of an ipyparallel cluster, and gathers what they say.

It is ipyparallel that has the engines, the connections and the signatures of messages.
A request is a line of code with a dictionary as JSON in it; an answer is an output of
ours among the outputs of that line, so nothing is pickled. Answers may come after the
line has ended, and while it still runs.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, MissingPackage
from gpumagic.gpu_ranks.answers import (
    MIME,
    VERSION,
    Alive,
    Seat,
    Unfinished,
    read_answer,
)
from gpumagic.gpu_ranks.unfinished import why_of
from gpumagic.report.units import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.gpu_ranks.answers import Answer

_CODE = "__import__('gpumagic.gpu_ranks.on_engine', fromlist=['answer']).answer({!r})"
_LATE_S = 3.0  # how long outputs may stay behind the end of their line
_PAUSE_S = 0.005
_BUSY_S = 1.0  # for what was begun just before, such as `scatter`
_ENDS_S = 0.2
HEARS_S = 1.0  # within which who hears Ctrl-C has come back


def client_in(namespace: Mapping[str, Any], chosen: Any = None) -> Any:
    """The cluster's client among the names of a notebook."""
    every = {
        name: client
        for name, value in [*namespace.items()]
        for client in _clients_of(value, sys.modules.get("ipyparallel"))
    }
    if not every:
        raise MissingPackage(
            "there is no cluster here: no variable holds a client of one that runs",
            "import ipyparallel as ipp; rc = ipp.Cluster(n=4).start_and_connect_sync()"
            " (pip install 'gpumagic[ranks]' brings it)",
        )
    # What begins with "_" is mostly what cells have shown, kept by IPython.
    found = {name: its for name, its in every.items() if name[0] != "_"} or every
    if any(client is chosen for client in found.values()):
        return chosen
    # Several clients may be of one cluster.
    clusters = {
        getattr(its, "_config", {}).get("registration", id(its)): name
        for name, its in found.items()
        if its.ids
    }
    names = list(clusters.values())
    if len(names) > 1:
        raise GpuMagicError(
            f"there are {len(names)} clusters here: {listed(names)}",
            f"{names[-1]}.activate() chooses one, as for %px",
        )
    return found[names[0] if names else [*found][-1]]


def _clients_of(value: Any, package: Any) -> Iterator[Any]:
    """The client itself, or that of a view, if nobody has stopped its cluster."""
    if not package:
        return
    if isinstance(value, (package.DirectView, package.LoadBalancedView)):
        value = value.client
    if isinstance(value, package.Client) and not value._closed:  # noqa: SLF001
        cluster = getattr(value, "cluster", None)  # None where others have started it
        if not cluster or cluster.controller:
            yield value


class Asked:
    """A request to several engines, and what has come of it so far.

    `send` asks one and gives ipyparallel's own result; `names` has the rank of each
    engine, as far as any has ever told, and is kept up.
    """

    def __init__(
        self, send: Callable[[int], Any], targets: Sequence[int], names: dict[int, int]
    ) -> None:
        self._send_to, self._targets, self.names = send, targets, names
        self.results: dict[int, Any] = {}  # ipyparallel's, once sent
        self.interrupted: tuple[int, ...] = ()  # those that ran when Ctrl-C was sent
        self.interrupted_s = math.inf  # when that was
        self._seen: dict[int, int] = {}
        self._said: dict[int, dict[str, Any]] = {}
        self._last: dict[int, Answer] = {}
        self._alive: dict[int, Alive] = {}
        self._sender = ThreadPoolExecutor(1)
        self._sending = threading.Lock()

    def begin(self) -> None:
        """Send it, if that has not been done, though Ctrl-C comes meanwhile.

        It is done in a thread, where no Ctrl-C arrives: what was sent is always known,
        so it can be interrupted and waited for.
        """
        self._sender.submit(self._send).result()

    def _send(self) -> None:
        with self._sending:
            left = (each for each in self._targets if each not in self.results)
            self.results.update((each, self._send_to(each)) for each in left)

    def news(self) -> set[int]:
        """Take in what has come since this was last asked; from which engines."""
        came = set()
        for engine, result in self.results.items():
            outputs = metadata_of(result).get("outputs", [])
            seen = self._seen.get(engine, 0)
            self._seen[engine] = len(outputs)
            for output in outputs[seen:]:
                if MIME in output.get("data", {}):
                    self._note(engine, output["data"][MIME])
                    came.add(engine)
        return came

    def _note(self, engine: int, said: Any) -> None:
        answer = read_answer(said, self.names.get(engine, engine))
        if isinstance(answer, Seat) and answer.rank is None:  # it has left its group
            answer = replace(answer, name=engine)
        if not isinstance(answer, Unfinished):
            self.names[engine] = answer.name
        if isinstance(answer, Alive):
            self._alive[engine] = answer
        else:
            self._last[engine], self._said[engine] = answer, said

    @property
    def running(self) -> list[int]:
        """Engines whose line has not ended."""
        return [e for e, result in self.results.items() if not result.ready()]

    @property
    def awaited(self) -> list[int]:
        """Engines that have not given an answer, and may still do so."""
        return [
            engine
            for engine, result in self.results.items()
            if engine not in self._last and not (result.ready() and result.exception())
        ]

    def said(self, engine: int) -> dict[str, Any]:
        """What an engine has answered, as it came; empty without a proper answer."""
        is_garbage = isinstance(self._last.get(engine), Unfinished)
        return {} if is_garbage else self._said.get(engine, {})

    def checked(self) -> list[Answer]:
        """An answer of each engine, its last word while it runs, or why there is none.

        In the order in which they were asked.
        """
        return [self._last.get(each) or self._unanswered(each) for each in self.results]

    def _unanswered(self, engine: int) -> Answer:
        name, result = self.names.get(engine, engine), self.results[engine]
        nothing = Unfinished(name, "silent", "no answer")
        last_word = self._alive.get(engine, nothing)
        if result.ready() and (error := result.exception()):
            return replace(_unfinished(name, error), line=last_word.line)
        if isinstance(last_word, Alive):
            had_time = time.monotonic() - self.interrupted_s > HEARS_S
            return replace(last_word, deaf=had_time and engine in self.interrupted)
        return last_word


def _unfinished(name: int, error: BaseException) -> Unfinished:
    kind = str(getattr(error, "ename", type(error).__name__))
    text = str(getattr(error, "evalue", error)).partition("\n")[0]
    if kind in {"ModuleNotFoundError", "ImportError"} and "gpumagic" in text:
        lacks = "it has no gpumagic, or an older one: pip install -U gpumagic"
        return Unfinished(name, "garbage", lacks)
    if "EngineError" in {kind, type(error).__name__}:
        return Unfinished(name, "died", "the engine is gone")
    return Unfinished(name, why_of(kind), f"{kind}: {text}")


def metadata_of(result: Any) -> dict[str, Any]:
    """One dictionary for one engine, whichever way this version has it."""
    metadata = result.metadata
    return metadata if isinstance(metadata, dict) else dict(metadata[0])


class Engines:
    """Those of one cluster, by ipyparallel's client."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.names: dict[int, int] = {}  # the rank of each, as far as any has told

    def chosen(self, on: str) -> list[int]:
        """Some of them, as typed: 0,2 or 0-3; all without a word."""
        there = list(self.client.ids)
        if not there:
            raise GpuMagicError(
                "no engine is there",
                "rc.wait_for_engines(4) waits for those that are to come; "
                "rc.cluster.start_engines_sync(n=4) starts others",
            )
        if not on:
            return there
        found = (each for part in on.split(",") for each in _range(part, there))
        return list(dict.fromkeys(found))

    def busy(self, targets: Sequence[int]) -> list[int]:
        """Those among some that still run what was asked of them from here.

        What was begun a moment ago, as by `scatter`, is given time to end.
        """
        until_s = time.monotonic() + _BUSY_S
        while True:
            sent = dict(getattr(self.client, "_outstanding_dict", {}))
            numbers = getattr(self.client, "_engines", {})
            running = {numbers.get(uuid) for uuid, messages in sent.items() if messages}
            busy = [each for each in targets if each in running]
            if not busy or time.monotonic() > until_s:
                return busy
            time.sleep(_PAUSE_S)

    def request(
        self, kind: str, targets: Iterable[int], each: Callable[[int], dict[str, Any]]
    ) -> Asked:
        """What is to be asked of several, each its own; `begin` sends it."""
        lines = {
            engine: _CODE.format(
                json.dumps(
                    {"version": VERSION, "kind": kind, "engine": engine, **each(engine)}
                )
            )
            for engine in targets
        }
        views = {engine: self.client[engine] for engine in lines}

        def send(engine: int) -> Any:
            return views[engine].execute(lines[engine], silent=False, block=False)

        return Asked(send, [*lines], self.names)

    def interrupt(self, asked: Asked) -> None:
        """Send Ctrl-C to those that still run."""
        asked.begin()  # where it came while that was sent
        if targets := asked.running:
            asked.interrupted_s = time.monotonic()
            asked.interrupted = tuple(targets)
            self.client.send_signal(signal.SIGINT, targets=targets, block=False)

    def restart_line(self, targets: Sequence[int], namespace: Mapping[str, Any]) -> str:
        """What to type so that others come in the place of some engines."""
        names = (name for name, value in namespace.items() if value is self.client)
        rc, count = next(names, ""), len(targets)
        if not (rc and getattr(self.client, "cluster", None)):
            which = listed([str(each) for each in targets])
            return f"restart engines {which}, then `%gpu_ranks group`"
        return (
            f"{rc}.cluster.start_engines_sync(n={count}); "
            f"{rc}.wait_for_engines({len(self.client.ids) + count}); "
            f"{rc}.send_signal(9, {list(targets)})"
        )


def _range(part: str, there: Sequence[int]) -> list[int]:
    first, _, last = part.strip().partition("-")
    ends = first, last or first
    if all(each.isdecimal() and int(each) in there for each in ends):
        found = [each for each in there if int(ends[0]) <= each <= int(ends[1])]
        if found:
            return found
    raise GpuMagicError(
        f"{part!r} names no engines that are there",
        f"they are {there[0]} to {there[-1]}: write --on {there[-1]} for one of them, "
        f"--on {there[0]}-{there[-1]} for several",
    )


def wait_for(
    asked: Asked,
    *,
    each_moment: Callable[[Asked], object] = lambda _: None,
) -> None:
    """Wait until each engine has answered, or has ended without an answer."""
    until_s = math.inf
    ended_s = math.inf  # when the last line has ended whose answer is still to come
    while time.monotonic() < min(until_s, ended_s + _LATE_S):
        asked.news()
        each_moment(asked)
        if not asked.awaited:  # lines end next
            until_s = min(until_s, time.monotonic() + _ENDS_S)
            if not asked.running:
                return
        ended_s = min(ended_s, time.monotonic())
        if {*asked.running}.intersection(asked.awaited):
            ended_s = math.inf
        _pause(asked)


def _pause(asked: Asked) -> None:
    """Wait a moment, or less where a line ends meanwhile."""
    if running := asked.running:
        asked.results[running[0]].wait(_PAUSE_S)
    else:
        time.sleep(_PAUSE_S)


def hear(asked: Asked, *, within_s: float) -> None:
    """Wait until each engine that runs has said something anew."""
    until_s, heard = time.monotonic() + within_s, set[int]()
    asked.news()
    while not heard.issuperset(asked.running) and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)
        heard |= asked.news()
