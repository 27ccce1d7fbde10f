"""What all our magics share: reading options, showing a report, running a body.

A magic is arguments, one call, return. It never prints: a report is displayed
through IPython, and finds its own view.
"""

from __future__ import annotations

import functools
import json
import keyword
import math
from typing import TYPE_CHECKING, Any, ClassVar

from IPython.core.magic import Magics, line_cell_magic, no_var_expand
from IPython.core.magic_arguments import kwds
from IPython.display import display

from gpumagic.errors import UsageProblem
from gpumagic.notebook import arguments
from gpumagic.notebook.arguments import argument
from gpumagic.notebook.help_text import Unwritten, help_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from contextlib import AbstractContextManager, ExitStack

    from gpumagic.drawing.progress import Place, Progress
    from gpumagic.notebook.session import Session
    from gpumagic.report.record import Report

Method = Any  # a method of a Magics class; IPython's decorators are untyped


class GpuMagics(Magics):
    """Base of the class in every room's `magic.py`."""

    keeps_last: ClassVar[bool] = True
    """Whether `--show PART` alone is about the last report, and looks no more."""

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell)
        self.session = session

    def install(self, undo: ExitStack) -> None:
        """What a room does besides its magics from its loading on; nothing here."""

    def read(
        self, method: Method, line: str, cell: str | None = None
    ) -> argparse.Namespace:
        """The options of a line without code."""
        return arguments.parse(method.parser, typed_name(method, cell), line)

    def show(
        self, report: Report, options: argparse.Namespace, place: Place | None = None
    ) -> Report | None:
        """Display and store a report as the options ask; return it where `-o` asks."""
        self.session.last[_room(type(report))] = report
        if options.variable:
            self.shell.user_ns[options.variable] = report
        if options.json and not options.quiet:
            show_text(json.dumps(report.to_dict(), indent=2))
        elif not options.quiet:
            asked = report.as_asked(options.show or (), whole=options.all)
            if place is None or not place.become(asked):
                display(asked)
            if options.output:
                self.session.remember_shown(report, self.shell.execution_count)
        return report if options.output else None

    @property
    def last_report(self) -> Any | None:
        """The last report of this magic in this notebook."""
        return self.session.last.get(_room(type(self)))

    def shows_last(self, line: str) -> bool:
        """Show parts of the last report, if that is all that a line asks for."""
        names = arguments.parts_asked_alone(line)
        last = self.last_report if self.keeps_last else None
        if names is None or last is None:
            return False
        display(last.show(*names))
        return True

    def progress(
        self,
        total: int | None,
        label: str,
        *,
        quiet: bool = False,
        at_once: bool = False,
    ) -> AbstractContextManager[Progress]:
        """Steps of something long, counted in one place of this shell."""
        from gpumagic.notebook import live

        began = {"begins_after_s": math.inf if quiet else 0.0}
        return live.progress(
            self.shell, total, label, **began if quiet or at_once else {}
        )

    def show_live(self, *, keeps: bool) -> None:
        """Draw what the running cell does until it has ended."""
        from gpumagic.notebook.live import Panel

        Panel(self.shell, lambda: self.session.driver, keeps=keeps).begin()

    def run_body(self, typed: str, body: str, **around: Callable[..., object]) -> Any:
        """Run the body of a cell magic; an awaitable where the body awaits.

        What stands `around` it is called `before` and, with its outcome, `after` it.
        """
        __tracebackhide__ = True
        from gpumagic.notebook import cells

        return cells.run(self.shell, body, magic_line=typed, **around)


def _room(kind: type) -> str:
    """The folder of a room by what is defined in it."""
    return kind.__module__.rpartition(".")[0]


def variable_name(text: str) -> str:
    """A name that can be assigned to."""
    if text.isidentifier() and not keyword.iskeyword(text):
        return text
    raise UsageProblem(f"-v {text}: this is no name of a variable", "type -v report")


def parts_of_last(magics: GpuMagics, begun: str) -> list[str]:
    """What `--show` can show of the last report, behind the commas that are there."""
    last = magics.last_report
    before, comma, _ = begun.rpartition(",")
    said = before.split(",")
    known = last.parts if last is not None else ()
    return [f"{before}{comma}{name}" for name in known if name not in said]


_OUTPUT_OPTIONS = (
    argument(
        "-o",
        "--output",
        more=True,
        action="store_true",
        help="Return the report, too; from a cell, in place of its value.",
    ),
    argument(
        "-v",
        "--variable",
        more=True,
        type=variable_name,
        metavar="NAME",
        help="Store the report under this name, too.",
    ),
    argument(
        "--show",
        type=arguments.names_of_parts,
        metavar="PARTS",
        offers=parts_of_last,
        help="Show these parts, as in --show how; alone, of the last report.",
    ),
    argument("--all", action="store_true", help="Show all parts."),
    argument(
        "-q",
        "--quiet",
        more=True,
        action="store_true",
        help="Do not show the report.",
    ),
    argument("--json", more=True, action="store_true", help="Show the report as JSON."),
)


def gpu_magic(method: Method) -> Method:
    """Make a method a magic in line and cell form.

    `--help` shows what `?` shows. A `;` at the end of the line form silences its
    value. The text behind the name is left as it was typed: `{x}` in it may be code.
    """
    method.__doc__ = help_text(method.parser)

    @functools.wraps(method)
    def magic(self: GpuMagics, line: str, cell: str | None = None) -> Any:
        __tracebackhide__ = True
        if arguments.wants_help(line):
            return show_text(method.__doc__)
        if cell is None and self.shows_last(line):
            return None
        value = method(self, line, cell)
        return None if cell is None and line.rstrip().endswith(";") else value

    return line_cell_magic(no_var_expand(magic))


def output_options(method: Method) -> Method:
    """The options that every magic has for its report, and the manner of its help."""
    method = kwds(formatter_class=Unwritten)(method)
    for option in reversed(_OUTPUT_OPTIONS):  # as decorators apply: the last first
        method = option(method)
    return method


def typed_name(method: Method, cell: str | None) -> str:
    """The magic as the user typed it, with one percent sign or two."""
    return ("%" if cell is None else "%%") + str(method.__name__)


def show_text(text: str) -> None:
    """Display plain text as it is."""
    display({"text/plain": text}, raw=True)
