"""`%gpu_doctor` examines this process; `%%gpu_doctor` examines what a cell changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.errors import UsageProblem
from gpumagic.notebook.arguments import argument, examples, word
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, typed_name

if TYPE_CHECKING:
    import argparse

    from gpumagic.gpu_doctor.answer_doctor import WordsReport
    from gpumagic.notebook.cells import Outcome


def terms(_: DoctorMagics, begun: str) -> list[str]:
    """The words that are explained, and their groups."""
    del begun
    from gpumagic.report.words import WORDS

    return [*WORDS, *(term for group in WORDS.values() for term in group)]


@magics_class
class DoctorMagics(GpuMagics):
    """The magic of this room."""

    keeps_last = False  # a look is cheap, and what it saw may have changed

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%gpu_doctor": "is this machine ready for GPU work?",
            "%%gpu_doctor": "what did the cell below change?",
            "%gpu_doctor words kernel": "what does this word mean?",
        }
    )
    @argument("what", nargs="*", metavar="WORD", help="Nothing, or the word.")
    @word("words [TERM]", "What the words of the reports mean.", offers=terms)
    @output_options
    def gpu_doctor(self, line: str, cell: str | None = None) -> Any:
        """Say what is here for GPU work, whether it fits together, and what to do.

        Looking starts nothing: no CUDA, no import of torch. In front of a cell, say
        what the cell changed: whether it started CUDA, imported torch or set one of
        the variables that steer CUDA.
        """
        __tracebackhide__ = True
        from gpumagic.gpu_doctor import api

        options = self.read(self.gpu_doctor, line, cell)
        if options.what:
            said = _words(options, typed_name(self.gpu_doctor, cell))
            return self.show(said, options)
        driver, shell = self.session.driver, self.shell
        if cell is None:
            return self.show(api.examine(driver, shell), options)
        before = api.gather(driver, shell)

        def report(_: Outcome) -> Any:
            after = api.gather(driver, shell)
            return self.show(api.compare(before, after), options)

        return self.run_body(f"%%gpu_doctor {line}", cell, after=report)


def _words(options: argparse.Namespace, magic: str) -> WordsReport:
    """The words that a line asks for; of a group they are in sight."""
    from gpumagic.gpu_doctor import api
    from gpumagic.report.words import WORDS

    first, *asked = options.what
    if f"{magic} {first}" != "%gpu_doctor words":
        raise UsageProblem(
            f"{magic} has no word {first}",
            "type %gpu_doctor words for what a word means, or nothing behind it",
        )
    term = " ".join(asked)
    if term in WORDS:
        options.show = (*(options.show or ()), "words")
    return api.words(term)
