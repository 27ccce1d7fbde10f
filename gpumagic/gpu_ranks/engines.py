"""Asks the engines of an ipyparallel cluster, and gathers what they say.

It is ipyparallel that has the engines, the connections and the signatures of messages.
A request is a line of code with a dictionary as JSON in it; an answer is an output of
ours among the outputs of that line, so nothing is pickled. Answers may come after the
line has ended, and while it still runs.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError, MissingPackage
from gpumagic.gpu_ranks.answers import read
from gpumagic.gpu_ranks.records import Unfinished

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from gpumagic.gpu_ranks.answers import Answer

MIME = "application/vnd.gpumagic.rank+json"
_CODE = "__import__('gpumagic.gpu_ranks.on_engine', fromlist=['answer']).answer({!r})"
_LATE_S = 3.0  # how long outputs may stay behind the end of their line
_PAUSE_S = 0.02
_MISSING = ("ModuleNotFoundError", "ImportError")


def client_in(namespace: Mapping[str, Any]) -> Any:
    """The cluster's client among the names of a notebook; the newest of several.

    Args:
        namespace: The names.
    """
    package = sys.modules.get("ipyparallel")
    if package is None:
        raise MissingPackage(
            "there is no cluster here: ipyparallel has not been imported",
            "import ipyparallel as ipp; rc = ipp.Cluster(n=4).start_and_connect_sync()",
        )
    found = [
        each
        for each in map(_client_of, list(namespace.values()))
        if isinstance(each, package.Client) and not each._closed  # noqa: SLF001
    ]
    if not found:
        raise GpuMagicError(
            "no variable holds a client of a cluster",
            "rc = ipp.Cluster(n=4).start_and_connect_sync()",
        )
    return found[-1]


def _client_of(value: Any) -> Any:
    """The client itself, or that of a view."""
    return value.client if type(value).__name__.endswith("View") else value


@dataclass
class Asked:
    """A request to several engines, and what has come of it so far.

    Attributes:
        results: ipyparallel's own, by engine.

        given_up: Whether nobody waits for it any more.
    """

    results: dict[int, Any]
    given_up: bool = False
    _seen: dict[int, int] = field(default_factory=dict)
    _last: dict[int, dict[str, Any]] = field(default_factory=dict)
    _alive: dict[int, dict[str, Any]] = field(default_factory=dict)

    def news(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """What has come since this was last asked, each thing once."""
        for engine, result in self.results.items():
            outputs = _metadata(result).get("outputs", [])
            seen = self._seen.get(engine, 0)
            self._seen[engine] = len(outputs)
            for output in outputs[seen:]:
                said = output.get("data", {}).get(MIME)
                if said is not None:
                    self._note(engine, said)
                    yield engine, said

    def _note(self, engine: int, said: Any) -> None:
        is_alive = isinstance(said, dict) and said.get("kind") == "alive"
        (self._alive if is_alive else self._last)[engine] = said

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
            if engine not in self._last and not (result.ready() and _failed(result))
        ]

    def answers(self) -> list[Any]:
        """The dictionaries that came, each engine's last."""
        return [self._last[engine] for engine in sorted(self._last)]

    def alive(self) -> list[dict[str, Any]]:
        """The last word of each engine that still runs."""
        return [self._alive[e] for e in self.running if e in self._alive]

    def checked(self) -> list[Answer]:
        """An answer of each engine, or why there is none."""
        return [self._checked(engine) for engine in self.results]

    def _checked(self, engine: int) -> Answer:
        if engine in self._last:
            return read(self._last[engine], engine)
        result = self.results[engine]
        if not result.ready():
            if engine in self._alive:
                return read(self._alive[engine], engine)
            return Unfinished(engine, "silent", "no answer yet")
        error = _failed(result)
        if error is None:
            return Unfinished(engine, "silent", "it ended without an answer")
        return _unfinished(engine, error)


def _unfinished(engine: int, error: BaseException) -> Unfinished:
    name = getattr(error, "ename", type(error).__name__)
    text = getattr(error, "evalue", str(error))
    if name in _MISSING and "gpumagic" in str(text):
        return Unfinished(engine, "garbage", "it has no gpumagic: pip install it there")
    died = type(error).__name__ == "EngineError"
    return Unfinished(engine, "died" if died else "raised", f"{name}: {text}")


def _metadata(result: Any) -> dict[str, Any]:
    """One dictionary for one engine, whichever way this version has it."""
    metadata = result.metadata
    return metadata if isinstance(metadata, dict) else dict(metadata[0])


def _failed(result: Any) -> BaseException | None:
    """The error that a line ended with."""
    error = result.exception()
    return error if isinstance(error, BaseException) else None


class Engines:
    """Those of one cluster.

    Args:
        client: Of ipyparallel.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def numbers(self) -> list[int]:
        """Those that are there now."""
        return list(self._client.ids)

    def chosen(self, on: str | None) -> list[int]:
        """Some of them, as typed: 0,2 or 0-3; all without a word."""
        there = self.numbers
        if not there:
            raise GpuMagicError(
                "no engine is there yet", "wait for them: rc.wait_for_engines(4)"
            )
        if on is None:
            return there
        wanted = [number for part in on.split(",") for number in _range(part)]
        for number in wanted:
            if number not in there:
                raise GpuMagicError(
                    f"there is no engine {number}",
                    f"there are {there[0]} to {there[-1]}",
                )
        return wanted

    def ask(
        self, kind: str, targets: Iterable[int], each: Callable[[int], dict[str, Any]]
    ) -> Asked:
        """Ask several, each its own request.

        Args:
            kind: What is asked.

            targets: Whom.

            each: What belongs to the request, for an engine.
        """
        results = {}
        for engine in targets:
            request = json.dumps({"kind": kind, "engine": engine, **each(engine)})
            results[engine] = self._client[engine].execute(
                _CODE.format(request), silent=False, block=False
            )
        return Asked(results)

    def interrupt(self, targets: Sequence[int]) -> None:
        """Send them Ctrl-C."""
        self._client.send_signal(signal.SIGINT, targets=list(targets), block=False)


def _range(part: str) -> list[int]:
    first, dash, last = part.strip().partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise GpuMagicError(f"{part!r} names no engines", "write --on 0,2 or --on 0-3")
    return list(range(int(first), int(last if dash else first) + 1))


def wait_for(asked: Asked, *, each_moment: Callable[[], object] = lambda: None) -> None:
    """Wait until each engine has answered, or has ended without an answer.

    Args:
        asked: What was asked.

        each_moment: Called again and again meanwhile.
    """
    ended_s: float | None = None
    while True:
        for _ in asked.news():
            pass
        each_moment()
        if not asked.awaited:
            return
        if asked.running:
            ended_s = None
        elif ended_s is None:
            ended_s = time.monotonic()
        elif time.monotonic() - ended_s > _LATE_S:
            return
        time.sleep(_PAUSE_S)
