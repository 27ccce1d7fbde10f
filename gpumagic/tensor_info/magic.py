"""`%tensor_info` shows how tensors lie in memory; with a cell, after it has run."""

# ruff: noqa: S307 -- evaluating the user's own code is what it was typed for

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic.errors import GpuMagicError, UsageProblem, first_line
from gpumagic.notebook import arguments
from gpumagic.notebook.arguments import argument, examples
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options, typed_name

if TYPE_CHECKING:
    import argparse

    from gpumagic.notebook.cells import Outcome
    from gpumagic.tensor_info.report import (
        AliasReport,
        CompareReport,
        ModelReport,
        ViewReport,
    )

    Report = AliasReport | CompareReport | ModelReport | ViewReport

    Asked = list[tuple[str, ast.expr]]

_VIEW = re.compile(r"(.+)\.view\(([-\d, ]+)\)")
_ORDER = (
    "options come first, then expressions with commas between them: "
    "%tensor_info --view 24 x.t()"
)


def split(code: str) -> Asked:
    """The expressions of a line, split at the commas that stand outside of all else."""
    if not code.strip():
        return []
    text = "(" + code + "\n,)"
    tree = _parsed(text) or _parsed(text := "(" + code + "\n)")
    if not isinstance(tree, ast.Tuple):
        raise UsageProblem(
            f"{code!r} is no Python expression",
            _ORDER,
        )
    return [
        (ast.get_source_segment(text, node) or ast.unparse(node), node)
        for node in tree.elts
    ]


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, "<tensor_info>", mode="eval").body
    except (SyntaxError, ValueError):
        return None


def evaluate(
    asked: Asked, global_names: dict[str, Any], local_names: dict[str, Any]
) -> tuple[list[str], list[Any], list[str]]:
    """The texts and the values of those that have one, and a line for each other."""
    texts: list[str] = []
    values: list[Any] = []
    failures: list[str] = []
    for text, node in asked:
        try:
            code = compile(ast.Expression(node), "<tensor_info>", "eval")
            values.append(eval(code, global_names, local_names))
            texts.append(text)
        except Exception as error:  # noqa: BLE001 - it is the user's code
            name, first = type(error).__name__, first_line(error)
            said = name if first == name else f"{name}: {first}"
            failures.append(f"{text}: {said}")
    return texts, values, failures


def shape_of(text: str) -> tuple[int, ...]:
    """The shape that "6,4", "(6, 4)" or "-1" means."""
    inside = text.strip().removeprefix("(").removesuffix(")")
    try:
        return tuple(int(number) for number in inside.split(","))
    except ValueError:
        raise UsageProblem(
            f"--view {text} is no shape",
            "write whole numbers with commas and no blanks: --view 6,4",
        ) from None


@magics_class
class TensorMagics(GpuMagics):
    """The magic of this room."""

    @gpu_magic
    @magic_arguments()
    @examples(
        {
            "%tensor_info x": "how does x lie in memory?",
            "%tensor_info x, x.t()": "do they share it?",
            "%tensor_info --view 6,4 x": "does x.view(6, 4) work, and why not?",
        }
    )
    @argument(
        "--view",
        type=shape_of,
        metavar="SHAPE",
        help="Say whether .view(SHAPE) works, such as 6,4 or -1, and if not, why.",
    )
    @argument(
        "--gpu",
        more=True,
        action="store_true",
        help="Show what a warp reads along each dim.",
    )
    @argument(
        "--alias",
        action="store_true",
        help="Show which names of the notebook share memory, or share it with these.",
    )
    @argument(
        "--values",
        action="store_true",
        help="Read the elements, too; on a device that runs and copies.",
    )
    @argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="Expressions: x, x.t(), x[:, ::2], or a model, an optimizer, a dict.",
    )
    @output_options
    def tensor_info(self, line: str, cell: str | None = None) -> Any:
        """Show how tensors lie in memory, and what a model holds.

        Each expression is evaluated once; looking itself runs nothing on a tensor
        and keeps none alive. In front of a cell, the cell runs first.
        """
        __tracebackhide__ = True
        method = self.tensor_info
        options, code = arguments.split_code(
            method.parser, typed_name(method, cell), line
        )
        asked = split(code.removesuffix(";"))
        if not asked and not options.alias:
            raise UsageProblem(
                f"{typed_name(method, cell)} has no tensor to look at",
                "name one or more, such as a tensor x: %tensor_info x",
            )
        if cell is None:
            return self.show(self._look(asked, options), options)

        def report(outcome: Outcome) -> Any:
            if outcome.error is not None:
                return None
            return self.show(self._look(asked, options), options)

        return self.run_body(f"%%tensor_info {line}", cell, after=report)

    def _look(self, asked: Asked, options: argparse.Namespace) -> Report:
        """The report; no tensor that the expressions made outlives it.

        IPython keeps the last error with its frames, so that the error is raised in
        a frame that has seen no tensor.
        """
        report, problem, hint = self._report_or_problem(asked, options)
        if report is None:
            raise GpuMagicError(problem, hint)
        return report

    def _report_or_problem(
        self, asked: Asked, options: argparse.Namespace
    ) -> tuple[Report | None, str, str]:
        from dataclasses import replace

        shell = self.shell
        texts, values, failures = evaluate(asked, shell.user_global_ns, shell.user_ns)
        if failures and not values:
            hint = "in a cell of its own an expression shows its whole traceback"
            if any(" --" in text for text, _ in asked):
                hint = _ORDER
            elif view := _VIEW.fullmatch(asked[0][0]):
                hint = f"%tensor_info --view {view[2].replace(' ', '')} {view[1]}"
            return None, "\n".join(failures), hint
        try:
            report = self._report_on(values, texts, options)
        except GpuMagicError as error:
            return None, error.problem, error.hint
        return replace(report, remarks=(*failures, *report.remarks)), "", ""

    def _report_on(
        self, values: list[Any], texts: list[str], options: argparse.Namespace
    ) -> Report:
        from gpumagic.tensor_info import api
        from gpumagic.tensor_info.inventory import holds_tensors

        if options.alias:
            # What is the user's own, and what earlier cells have put out.
            hidden = {*self.shell.user_ns_hidden} - {"Out", "_", "__", "___"}
            names = {
                name: value
                for name, value in self.shell.user_ns.items()
                if type(name) is str and name not in hidden
            }
            return api.aliases(names, only=values or None, expressions=texts)
        if options.view is not None:
            if len(values) > 1:
                raise GpuMagicError(
                    "--view is asked of one tensor at a time",
                    f"%tensor_info --view ... {texts[0]}",
                )
            return api.explain_view(values[0], options.view, expression=texts[0])
        if len(values) == 1 and not options.gpu and holds_tensors(values[0]):
            return api.overview(values[0], values=options.values, expression=texts[0])
        return api.compare(
            *values, expressions=texts, warp=options.gpu, values=options.values
        )
