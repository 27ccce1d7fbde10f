"""IPython in a real terminal, wide and narrow, with colours and without."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from rich.cells import cell_len

from tests.frontends import terminal
from tests.frontends.typed import CELLS, LONG, MISTAKES, REPORTS, SETUP

pytestmark = pytest.mark.skipif(bool(terminal.why_not()), reason=terminal.why_not())

_COLOURS = {"TERM": "xterm-256color"}
TERMINALS = {
    "120-true-colours": (120, {**_COLOURS, "COLORTERM": "truecolor"}),
    "80-no-colour": (80, {**_COLOURS, "NO_COLOR": "1"}),
    "120-dumb": (120, {"TERM": "dumb"}),
}


@dataclass
class Session:
    """What was seen in one terminal; by what was typed, with colours."""

    width: int
    colourful: bool
    shown: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, list[str]] = field(default_factory=dict)
    progress: list[str] = field(default_factory=list)
    after_interrupt: list[str] = field(default_factory=list)
    resized: tuple[list[str], list[str]] = ((), ())

    def report(self, typed: str) -> list[str]:
        """A report without colours: as many lines as its text has, from the end."""
        return [plain(line) for line in self.inked(typed)]

    def inked(self, typed: str) -> list[str]:
        """A report as it was shown, with colours."""
        return self.shown[typed][-len(self.texts[typed]) :]


def plain(line):
    """A line without its colours."""
    return terminal.ESCAPE.sub("", line).rstrip()


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """What each terminal shows: all at once, since most of it is waiting."""
    folders = [tmp_path_factory.mktemp("terminal") for _ in TERMINALS]
    with ThreadPoolExecutor() as threads:
        return dict(
            zip(TERMINALS, threads.map(_typed, TERMINALS, folders), strict=True)
        )


@pytest.fixture(scope="module", params=TERMINALS)
def session(request, sessions):
    """One of them."""
    return sessions[request.param]


def _typed(name, folder):
    """Everything typed into one terminal; what it showed is kept in build/terminal."""
    width, colours = TERMINALS[name]
    found = Session(width, "NO_COLOR" not in colours and colours["TERM"] != "dumb")
    with terminal.running(folder, width, colours) as window:
        for typed in SETUP:
            window.run(typed)
        for typed in (*REPORTS, *CELLS):
            window.seen.clear()
            found.shown[typed] = window.run(typed)
            found.progress += window.seen
            if " -v r" in typed:
                found.texts[typed] = _text(window, width)
        for typed in MISTAKES:
            found.shown[typed] = window.run(typed)
        window.seen.clear()
        found.shown[LONG] = window.run(LONG, interrupt_at=r"slow: [1-9][0-9.]* %")
        found.progress += window.seen
        found.after_interrupt = window.run("6 * 7")
        _save(name, window)
        window.resize(other := 200 - width)
        shown, text = window.run(REPORTS[0]), _text(window, other)
        found.resized = (list(map(plain, shown[-len(text) :])), text)
    return found


def _text(window, width):
    """The text of the report that was kept, as wide as the terminal."""
    shown = window.run(f"print('<', r.drawing().text({width}), '>', sep='\\n')")
    lines = [plain(line) for line in shown]
    return lines[lines.index("<") + 1 : lines.index(">")]


def _save(name, window):
    terminal.SAVED.mkdir(parents=True, exist_ok=True)
    lines = "\n".join(window.lines()) + "\n"
    (terminal.SAVED / f"{name}.txt").write_text(lines, encoding="utf-8")


def test_reports_are_complete(session):
    """What is on the screen is the report's text at that width, line for line."""
    assert len(session.texts) > 20
    for typed, text in session.texts.items():
        assert session.report(typed) == text, typed


def test_no_line_is_wider_than_the_terminal(session):
    """Reports wrap at words, not at the edge of the screen."""
    wide = {
        typed: line
        for typed in session.texts
        for line in session.report(typed)
        if cell_len(line) > session.width
    }
    assert wide == {}


def test_the_whole_width_is_used(session):
    """A wide terminal is not treated as a narrow one."""
    widest = max(cell_len(line) for t in session.texts for line in session.report(t))
    assert widest > session.width - 10


def test_colours_are_there_where_they_are_wanted(session):
    """Reports have colours in a terminal that shows them, and else no escapes."""
    lines = [line for typed in session.texts for line in session.inked(typed)]
    inked = [line for line in lines if "\x1b[" in line]
    assert bool(inked) == session.colourful, inked[:3]


def test_what_is_simulated_says_so(session):
    """The label stands in the first lines of each report of the simulated GPU."""
    silent = [
        typed
        for typed in session.texts
        if "[simulated" not in "\n".join(session.report(typed)[:3])
    ]
    assert silent == []


def test_a_mistake_is_answered_in_two_lines(session):
    """What is wrong and what to type next; no traceback."""
    for typed in MISTAKES:
        lines = [plain(line) for line in session.shown[typed] if plain(line)]
        assert re.match(r"\w+: ", lines[-2]), typed
        assert lines[-1].startswith("  -> "), typed
        assert not any("Traceback" in line for line in lines), typed


def test_progress_is_one_line(session):
    """Something long is one line on the screen while it runs, and none at its end."""
    running = [
        len(re.findall(r"^Measuring (?:loader|slow): [\d.]+ %", screen, re.MULTILINE))
        for screen in session.progress
    ]
    assert max(running) == 1
    long = "%pin_loader loader --budget 2s -v r"
    assert [line for line in session.shown[long] if "Measuring" in line] == []


def test_ctrl_c_ends_it_and_the_prompt_is_back(session):
    """A stopped measurement says how far it came; the next cell runs as ever."""
    said = "\n".join(map(plain, session.shown[LONG]))
    assert "Measuring slow: stopped at" in said
    assert "KeyboardInterrupt" in said
    assert any(plain(line).endswith(": 42") for line in session.after_interrupt)


def test_a_resized_window_is_followed(session):
    """The next report is as wide as the window has become."""
    shown, text = session.resized
    assert shown == text
