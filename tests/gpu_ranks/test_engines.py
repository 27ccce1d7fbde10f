"""Which cluster is asked, and what is made of engines that do not answer."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_ranks import engines
from gpumagic.gpu_ranks.answers import VERSION
from gpumagic.gpu_ranks.engines import Asked, Engines, client_in


class Client:
    """Of ipyparallel, as far as it is looked at."""

    _closed = False

    def __init__(self, cluster, ids=(0, 1)):
        self._config = {"registration": cluster}
        self.ids = list(ids)


class View:
    """Likewise."""

    def __init__(self, client):
        self.client = client


@pytest.fixture(autouse=True)
def package(monkeypatch):
    """What is found under ipyparallel's name."""
    names = {"Client": Client, "DirectView": View, "LoadBalancedView": View}
    monkeypatch.setitem(sys.modules, "ipyparallel", SimpleNamespace(**names))


# ------------------------------------------------------------------ which cluster


def test_several_clients_of_one_cluster_are_one():
    """Views and a second client of the same cluster leave nothing to choose."""
    rc = Client("tcp://a")

    assert client_in({"rc": rc, "dv": View(rc)}) is rc
    assert client_in({"rc": rc, "again": Client("tcp://a")})._config == rc._config


def test_of_two_clusters_somebody_has_to_choose():
    """A cell does not run on the wrong one; what `%px` uses is what is used."""
    first, second = Client("tcp://a"), Client("tcp://b")
    names = {"rc": first, "other": second}

    with pytest.raises(GpuMagicError, match="2 clusters here: rc and other") as refused:
        client_in(names)
    assert refused.value.hint.startswith("other.activate()")
    assert client_in(names, second) is second
    assert client_in(names, first) is first


def test_a_cluster_that_was_stopped_is_none():
    """Its client is still there, and has no engines; nor has one that was closed."""
    gone, here, closed = Client("tcp://a", ids=()), Client("tcp://b"), Client("tcp://c")
    closed._closed = True

    assert client_in({"old": gone, "rc": here, "closed": closed}, closed) is here
    assert client_in({"old": gone}) is gone


# ---------------------------------------------------------------------- no answer


def test_one_thread_alone_waits_for_a_controller_that_is_gone(monkeypatch):
    """However often it is asked; and once it answers all is as before."""
    monkeypatch.setattr(engines, "_ANSWERS_S", 0.05)
    over, asked = threading.Event(), []

    def queue_status(targets):
        asked.append(targets)
        over.wait()
        return {0: {"queue": 0}}

    those = Engines(SimpleNamespace(ids=[0], queue_status=queue_status))
    for _ in range(3):
        with pytest.raises(GpuMagicError, match="does not answer"):
            those.busy([0])
    assert len(asked) == 1

    over.set()
    monkeypatch.setattr(engines, "_ANSWERS_S", 5.0)
    assert those.busy([0]) == []


def test_a_client_that_fails_says_nothing_on_stderr(capfd):
    """A thread of ours that fails is told in two lines, not by a traceback."""

    def queue_status(_):
        raise OSError("Connections have been closed.")

    with pytest.raises(GpuMagicError, match="does not answer"):
        Engines(SimpleNamespace(ids=[0], queue_status=queue_status)).busy([0])
    assert capfd.readouterr().err == ""


class TaskAborted(Exception):
    """ipyparallel's word for what an engine has thrown away."""


def dropping(count):
    """Sends what an engine drops so many times before it runs."""
    sent = []

    def send(engine):
        sent.append(engine)
        error = TaskAborted() if sent.count(1) <= count and engine == 1 else None
        return SimpleNamespace(
            ready=lambda: True, exception=lambda: error, metadata={"outputs": []}
        )

    return send, sent


def test_what_an_engine_drops_behind_a_failed_line_is_asked_again():
    """The others wait for it: nobody but who has asked can bring it."""
    send, sent = dropping(2)
    asked = Asked(send, [0, 1, 2])
    asked.begin()
    assert 1 in asked.awaited
    for _ in range(5):
        asked.news()

    assert sent == [0, 1, 2, 1, 1]
    assert [*asked.results] == [0, 1, 2]
    assert asked.results[1].exception() is None


def test_what_is_dropped_again_and_again_or_after_ctrl_c_is_left():
    """Somebody wants it so: it is told as a rank that has not finished."""
    send, sent = dropping(1000)
    asked = Asked(send, [1])
    asked.begin()
    for _ in range(30):
        asked.news()
    assert len(sent) < 30
    assert [each.why for each in asked.checked()] == ["raised"]

    send, sent = dropping(1000)
    asked = Asked(send, [1])
    asked.begin()
    asked.interrupted_s = time.monotonic()
    asked.news()
    assert sent == [1]


# ------------------------------------------------------------------------- Ctrl-C


def running(*, is_over=False):
    """What ipyparallel gives for a line."""
    return SimpleNamespace(
        ready=lambda: is_over, exception=lambda: None, metadata={"outputs": []}
    )


def alive(engine):
    """What an engine says while it runs."""
    return {"version": VERSION, "kind": "alive", "rank": engine, "since_s": 3.0}


def test_who_was_sent_ctrl_c_just_now_is_not_called_deaf():
    """It has a second to come back, and only who was sent it can be deaf."""
    asked = Asked(lambda _: running(), [0, 1])
    asked.begin()
    asked._alive = {0: alive(0), 1: alive(1)}
    asked.interrupted, asked.interrupted_s = (0,), time.monotonic()
    assert [each.deaf for each in asked.checked()] == [False, False]

    asked.interrupted_s -= 2 * engines.HEARS_S
    assert [each.deaf for each in asked.checked()] == [True, False]


def test_what_was_sent_is_known_though_ctrl_c_comes_meanwhile():
    """Each engine is asked once, and one that fails says so where it was asked."""
    sent = []

    def send(engine):
        sent.append(engine)
        if engine == 1 and sent.count(1) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        return running()

    asked = Asked(send, [0, 1, 2])
    with pytest.raises(KeyboardInterrupt):
        asked.begin()
    asked.begin()
    assert sent == list(asked.results) == [0, 1, 2]

    with pytest.raises(KeyError):
        Asked({}.__getitem__, [0]).begin()
