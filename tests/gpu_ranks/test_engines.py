"""Which cluster is asked, and what is made of engines that do not answer."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from gpumagic.errors import GpuMagicError, UsageProblem
from gpumagic.gpu_ranks import answer_where, engines
from gpumagic.gpu_ranks.answers import Alive, Unfinished
from gpumagic.gpu_ranks.engines import Asked, Engines, client_in
from gpumagic.gpu_ranks.notebook import _word_of


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
    """Its client is still there, also with engines that nobody has signed off."""
    gone, here, closed = Client("tcp://a", ids=()), Client("tcp://b"), Client("tcp://c")
    stopped, closed._closed = Client("tcp://d"), True
    stopped.cluster = SimpleNamespace(controller=None)

    every = {"old": gone, "rc": here, "closed": closed, "stopped": stopped}
    assert client_in(every, closed) is here
    assert client_in({"old": gone}) is gone
    with pytest.raises(GpuMagicError, match="of one that runs"):
        client_in({"rc": stopped})


@pytest.mark.parametrize("typed", ["7", "1-9", "x", "3-1", "0,,2", "99999999999999"])
def test_engines_that_are_not_there(typed):
    """Who names engines that are not there is told so, before anybody is asked."""
    with pytest.raises(GpuMagicError, match="names no engines") as refused:
        Engines(Client("tcp://a", range(3))).chosen(typed)
    assert "--on 0-2 for several" in refused.value.hint


@pytest.mark.parametrize(
    ("words", "mem", "above_a_cell", "says"),
    [
        (["groups"], False, False, "no word groups"),
        (["group", "now"], False, False, "one word too many"),
        (["group"], False, True, "no word group"),
        ([], True, False, "--mem has no meaning here"),
    ],
)
def test_what_does_not_belong_together_is_refused(words, mem, above_a_cell, says):
    """It is said what is wrong, and what to type instead."""
    typed = SimpleNamespace(what=words, mem=mem)
    with pytest.raises(UsageProblem, match=says) as refused:
        _word_of(typed, above_a_cell=above_a_cell)

    assert refused.value.hint


# ------------------------------------------------------------------------- Ctrl-C


def running(*, is_over=False):
    """What ipyparallel gives for a line."""
    return SimpleNamespace(
        ready=lambda: is_over, exception=lambda: None, metadata={"outputs": []}
    )


def test_who_was_sent_ctrl_c_just_now_is_not_called_deaf():
    """It has a second to come back, and only who was sent it can be deaf."""
    asked = Asked(lambda _: running(), [0, 1], {})
    asked.begin()
    asked._alive = {0: Alive(0), 1: Alive(1)}
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

    asked = Asked(send, [0, 1, 2], {})
    with pytest.raises(KeyboardInterrupt):
        asked.begin()
    asked.begin()
    assert sent == list(asked.results) == [0, 1, 2]

    with pytest.raises(KeyError):
        Asked({}.__getitem__, [0], {}).begin()


# ---------------------------------------------------------------------- the panel


@pytest.fixture
def panel(monkeypatch):
    """What was drawn of engines whose clock a test moves on."""
    drawn, clock = [], SimpleNamespace(now_s=100.0)
    time = SimpleNamespace(monotonic=lambda: clock.now_s)
    monkeypatch.setattr(answer_where, "time", time)
    place = SimpleNamespace(show=lambda drawing: drawn.append(drawing.title))
    see = answer_where.Panel(place).see

    def seen(*answers, after_s):
        clock.now_s += after_s
        names = [each.name for each in answers]
        results = dict.fromkeys(names)
        told = {"checked": lambda: [*answers], "running": names, "results": results}
        see(SimpleNamespace(interrupted=(), **told))
        return drawn

    return seen


def test_a_panel_is_drawn_four_times_a_second_at_most(panel):
    """However often it is asked to look; and not at all in the first second."""
    for _ in range(1000):
        drawn = panel(Alive(0), Alive(1), after_s=0.005)

    assert len(drawn) in range(12, 17)


def test_who_raised_is_told_while_others_wait(panel):
    """It is why they wait, and nobody has to press Ctrl-C to read it."""
    raised = Unfinished(1, "raised", "ValueError: no")
    (title,) = panel(Alive(0), raised, Alive(2), after_s=2)

    assert title.startswith("rank 1 raised ValueError: no; ")
