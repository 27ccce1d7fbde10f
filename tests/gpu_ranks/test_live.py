"""The panel of a cell that runs on ranks: when it is drawn, and what it warns of."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from gpumagic.devices import now
from gpumagic.gpu_ranks import live, lookout
from gpumagic.gpu_ranks.answers import Alive, Unfinished

GIB = 1 << 30


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
    return Alive(name, 3.0, working=True, **more)


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


def test_a_rank_whose_memory_is_nearly_full_comes_first(panel):
    """What is in use there is said, and of no other rank."""
    panel.clock.now_s += 2
    full, half = (76 * GIB, 80 * GIB), (40 * GIB, 80 * GIB)
    panel.see(asked(*(alive(n, memory=full if n == 9 else half) for n in range(12))))

    (table,) = panel.screen.drawn[0].parts
    assert table.columns[-1].heading == "Memory nearly full"
    assert table.rows[0][0] == "9"
    assert [row[-1] for row in table.rows][:2] == ["76.0 of 80.0 GiB", ""]


def test_no_word_on_memory_as_long_as_there_is_room(panel):
    """A column that says nothing is left out."""
    panel.clock.now_s += 2
    panel.see(asked(alive(0, memory=(40 * GIB, 80 * GIB)), alive(1)))

    (table,) = panel.screen.drawn[0].parts
    assert "Memory nearly full" not in [each.heading for each in table.columns]


def test_who_raised_is_told_while_others_wait(panel):
    """It is why they wait, and nobody has to press Ctrl-C to read it."""
    panel.clock.now_s += 2
    panel.see(asked(alive(0), Unfinished(1, "raised", "ValueError: no"), alive(2)))

    assert panel.screen.drawn[0].title.startswith("rank 1 raised ValueError: no; ")


def test_memory_is_asked_of_the_driver_alone(monkeypatch):
    """Counters of torch may be locked while CUDA waits: they are not looked at."""

    def never(*_):
        raise AssertionError

    monkeypatch.setattr(now, "allocator_figures", never)
    monkeypatch.setattr(now, "simulated_box", lambda: None)
    monkeypatch.setattr(
        now, "runtime_now", lambda: SimpleNamespace(kind="cuda", simulated=False)
    )
    looking = now.Looking(lambda: SimpleNamespace(visible_devices=lambda: ("a", "b")))
    use = SimpleNamespace(used_bytes=7, total_bytes=8, busy_share=None)
    less = SimpleNamespace(used_bytes=1, total_bytes=8, busy_share=None)
    looking._reader = SimpleNamespace(uses=lambda _: {0: use, 1: less})

    assert looking.filled(0) == (7, 8)
    assert looking.filled(1) == (1, 8)
    assert looking.filled(None) is None


def test_a_driver_that_does_not_answer_keeps_no_cell(monkeypatch):
    """The cell ends though what looks at the rank waits for a driver that hangs."""
    monkeypatch.setattr(lookout, "_ENDS_S", 0.05)
    begun, freed = threading.Event(), threading.Event()

    def hangs():
        begun.set()
        assert freed.wait(60)

    told = []
    looks = lookout.Lookout(told.append, hangs, rank=0, every_s=0.001)
    monkeypatch.setattr(looks, "said", hangs)
    with looks:
        assert begun.wait(60)

    assert not freed.is_set()
    assert told == []
    freed.set()


def test_a_thread_that_has_ended_is_not_asked():
    """Its number may lead nowhere, and to ask for its clock end the process."""
    mine = threading.get_ident()
    other = threading.Thread(target=str)
    other.start()
    number = other.ident
    other.join()

    assert lookout._computed_ms(mine) is not None
    assert lookout._computed_ms(number) is None
