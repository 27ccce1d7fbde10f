"""The panel of a cell that runs on ranks: when it is drawn, and what it warns of."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.gpu_ranks import live
from gpumagic.gpu_ranks.answers import Alive, Unfinished


class Screen:
    """Where a panel is drawn; what was."""

    def __init__(self):
        self.drawn = []

    def show(self, drawing, *, is_last=False):
        """Keep it."""
        del is_last
        self.drawn.append(drawing)


def alive(name, **more):
    """A rank that works."""
    return Alive(name, 3.0, **more)


@pytest.fixture
def panel(monkeypatch):
    """A panel, its screen, and a clock that a test moves."""
    clock = SimpleNamespace(now_s=100.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    screen = Screen()
    return SimpleNamespace(
        see=live.Panel(screen, hang_s=5.0).see, screen=screen, clock=clock
    )


def asked(*answers):
    """Engines that all run, with what they have said last."""
    names = [each.name for each in answers]
    return SimpleNamespace(
        checked=lambda: list(answers), running=names, results=dict.fromkeys(names)
    )


def test_a_panel_is_drawn_four_times_a_second_at_most(panel):
    """However often it is asked to look; and not at all in the first second."""
    for _ in range(1000):
        panel.clock.now_s += 0.005
        panel.see(asked(alive(0), alive(1)))

    assert len(panel.screen.drawn) in range(12, 17)


def test_who_raised_is_told_while_others_wait(panel):
    """It is why they wait, and nobody has to press Ctrl-C to read it."""
    panel.clock.now_s += 2
    panel.see(asked(alive(0), Unfinished(1, "raised", "ValueError: no"), alive(2)))

    assert panel.screen.drawn[0].title.startswith("rank 1 raised ValueError: no; ")
