"""Report, view and magic in one: `%load_ext tests.notebook.noting.report`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.notebook.completion import Completion
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options
from gpumagic.report.frontend import settings_of
from gpumagic.report.record import Report

CLOCK = "the clock is the model's"


@dataclass(frozen=True)
class NotingReport(Report):
    """How often was looked."""

    looks: int

    def drawing(self):
        """A title, a note that has a word, and two parts."""
        from gpumagic.drawing import Details, Drawing, Note, Paragraph, how_measured

        copies = Details("The copies", (Paragraph(f"copied {self.looks}"),), "copies")
        how = how_measured(Paragraph("by counting"))
        note = Note("note", CLOCK, "", "the clock")
        return Drawing(f"Look {self.looks}", (note, copies, how))


@magics_class
class NotingMagics(GpuMagics):
    """The magic."""

    looks = 0

    @gpu_magic
    @magic_arguments()
    @output_options
    def noting(self, line, cell=None):
        """Look once more."""
        options = self.read(self.noting, line, cell)
        self.looks += 1
        report = NotingReport(self.looks)
        if cell is None:
            return self.show(report, options)
        after = lambda _: self.show(report, options)  # noqa: E731
        return self.run_body(f"%%noting {line}", cell, after=after)


def load_ipython_extension(shell):
    """Add the magic and its completion to a shell that has loaded gpumagic."""
    session = settings_of(shell).session
    shell.register_magics(NotingMagics(shell, session))
    Completion(shell, session, {"noting"}).install(ExitStack())
