"""Runs a cell's own code as if the magic line were not there, once or often.

A nested `run_cell` would fire every hook twice, swallow errors and misread the
time by milliseconds; a rewritten source would change the user's strings and line
numbers. So the body goes through the shell's own transformers and compiler, all
of it before the first stamp, and runs in the user's namespace. The last value is
handed back, so that IPython shows it, after the second stamp.

IPython calls a cell magic without a loop, and draws a syntax error of its body through
our frames. `CellTransform` mends both before IPython sees the magic: a body that awaits
becomes an awaited call; one that does not compile is left to IPython, so that message,
line numbers and "nothing was run" are those of a plain cell. It holds no state: IPython
calls it for other reasons than running.
"""

# ruff: noqa: S102, S307 - running the user's own code is what a cell is for

from __future__ import annotations

import ast
import inspect
import io
import itertools
import linecache
import re
import tokenize
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from gpumagic.report.frontend import cell_numbers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence
    from contextlib import ExitStack
    from types import CodeType, TracebackType

_MAGIC_LINE = re.compile(r"%%(\w+)[ \t]*(.*?)\s*\Z", re.DOTALL)
_MODES = {ast.Module: "exec", ast.Interactive: "single", ast.Expression: "eval"}

_NO_CODE = (
    tokenize.ENDMARKER,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.COMMENT,
    tokenize.DEDENT,
)


class _CellSource(NamedTuple):
    """A body that was read: its text, the file it counts as, its statements."""

    text: str
    name: str
    nodes: list[ast.stmt]


@dataclass(frozen=True)
class CompiledCell:
    """A body that only waits to be run."""

    steps: tuple[CodeType, ...]
    value: CodeType | None  # the last expression, where its value is wanted
    namespaces: tuple[dict[str, Any], dict[str, Any]] = field(repr=False)

    @property
    def needs_await(self) -> bool:
        """Whether some statement awaits at top level."""
        return any(map(_is_coroutine, (*self.steps, self.value)))


@dataclass(frozen=True)
class Outcome:
    """What one run of a body came to."""

    started_ns: int
    ended_ns: int
    value: Any = None
    error: BaseException | None = None

    @property
    def elapsed_s(self) -> float:
        """Host time from the first statement to the last value or the error."""
        return (self.ended_ns - self.started_ns) / 1e9


def nothing(*_: object) -> None:
    """What is done before or after a body that nobody reports on."""


def run(
    shell: Any,
    body: str,
    *,
    magic_line: str = "",
    before: Callable[[], object] = nothing,
    after: Callable[[Outcome], object] = nothing,
) -> Any | Awaitable[Any]:
    """Compile and run a body; return its value, or an awaitable of it."""
    __tracebackhide__ = True
    compiled = compile_cell(shell, body, magic_line=magic_line)
    if compiled.needs_await:
        return _run_and_await(compiled, before, after)
    before()
    return _conclude(execute(compiled), after)


def compile_cell(shell: Any, body: str, *, magic_line: str = "") -> CompiledCell:
    """Compile a body under the name and the rules of the cell that is running."""
    source = _parse_cell(shell, body, magic_line=magic_line)
    steps, value = _split(source.nodes, shell.ast_node_interactivity)
    codes = compile_nodes(shell, [*steps, *value], source.name)
    ends_with_value = bool(value) and isinstance(value[-1], ast.Expression)
    wanted = ends_with_value and not _ends_in_semicolon(source.text)
    return CompiledCell(
        steps=tuple(codes[:-1] if wanted else codes),
        value=codes[-1] if wanted else None,
        namespaces=(shell.user_global_ns, shell.user_ns),
    )


def _parse_cell(shell: Any, body: str, *, magic_line: str = "") -> _CellSource:
    """A body as the shell understands it, known to tracebacks from now on."""
    text = f"# {magic_line.strip()}\n{shell.transform_cell(body)}"
    name = _name_for(shell, text)
    tree = shell.transform_ast(shell.compile.ast_parse(text, filename=name))
    return _CellSource(text, name, tree.body)


def compile_nodes(shell: Any, nodes: Sequence[ast.mod], name: str) -> list[CodeType]:
    """Compile statement by statement, as IPython does.

    So a `from __future__` in mid-cell counts for what follows, as in a plain cell.
    """
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if shell.autoawait else 0
    with shell.compile.extra_flags(flags):
        return [shell.compile(node, name, _MODES[type(node)]) for node in nodes]


def execute(compiled: CompiledCell) -> Outcome:
    """Run a body that awaits nothing."""
    __tracebackhide__ = True
    namespaces, value = compiled.namespaces, None
    started_ns = perf_counter_ns()
    try:
        for step in compiled.steps:
            exec(step, *namespaces)
        if compiled.value is not None:
            value = eval(compiled.value, *namespaces)
    except BaseException as error:  # noqa: BLE001 - it goes on in `_conclude`
        ended_ns = perf_counter_ns()
        return Outcome(started_ns, ended_ns, error=_without_our_frame(error))
    return Outcome(started_ns, perf_counter_ns(), value)


async def execute_async(compiled: CompiledCell) -> Outcome:
    """Run a body that awaits, on the loop that awaits this."""
    __tracebackhide__ = True
    namespaces, value = compiled.namespaces, None
    started_ns = perf_counter_ns()
    try:
        for step in compiled.steps:
            value = eval(step, *namespaces)
            value = await value if _is_coroutine(step) else None
        value = None
        if compiled.value is not None:
            value = eval(compiled.value, *namespaces)
            if _is_coroutine(compiled.value):
                value = await value
    except BaseException as error:  # noqa: BLE001 - it goes on in `_conclude`
        ended_ns = perf_counter_ns()
        return Outcome(started_ns, ended_ns, error=_without_our_frame(error))
    return Outcome(started_ns, perf_counter_ns(), value)


async def _run_and_await(
    compiled: CompiledCell,
    before: Callable[[], object],
    after: Callable[[Outcome], object],
) -> Any:
    __tracebackhide__ = True
    before()
    return _conclude(await execute_async(compiled), after)


def _conclude(outcome: Outcome, after: Callable[[Outcome], object]) -> Any:
    """Report, then hand out the value or raise the body's own exception."""
    __tracebackhide__ = True
    error = outcome.error
    if error is None:
        reported = after(outcome)
        return outcome.value if reported is None else reported
    traceback = error.__traceback__
    try:
        after(outcome)
    except Exception as problem:  # noqa: BLE001 - noted on the error that matters
        error.add_note(f"gpumagic could not report on this cell: {problem!r}")
    try:
        raise error.with_traceback(traceback)
    finally:
        # This frame ends up in the traceback: it must not hold on to the error.
        del outcome, error, traceback


def _split(
    nodes: list[ast.stmt], interactivity: str
) -> tuple[list[ast.mod], list[ast.mod]]:
    """Statements to run and, apart, what IPython would run for show.

    An expression at the end becomes a value to hand back. The rarer settings
    ("all", "last" on a compound statement) show themselves while running.
    """
    if interactivity == "last_expr_or_assign":
        nodes, interactivity = [*nodes, *_name_assigned(nodes)], "last_expr"
    if interactivity == "all":
        return [], [ast.Interactive([node]) for node in nodes]
    steps: list[ast.mod] = [ast.Module([node], []) for node in nodes]
    if not nodes or interactivity == "none":
        return steps, []
    if isinstance(nodes[-1], ast.Expr):
        return steps[:-1], [ast.Expression(nodes[-1].value)]
    if interactivity == "last":
        return steps[:-1], [ast.Interactive([nodes[-1]])]
    return steps, []


def _name_assigned(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """The name that the last statement binds, as an expression to show."""
    match nodes[-1:]:
        case (
            [ast.Assign(targets=[ast.Name() as target])]
            | [ast.AnnAssign(target=ast.Name() as target)]
            | [ast.AugAssign(target=ast.Name() as target)]
        ):
            shown = ast.Expr(ast.Name(target.id, ast.Load()))
            return [ast.fix_missing_locations(ast.copy_location(shown, nodes[-1]))]
    return []


def _ends_in_semicolon(text: str) -> bool:
    """Whether the last token of the code is the `;` that silences a cell."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [each.string for each in tokens if each.type not in _NO_CODE][-1:] == [";"]


def _name_for(shell: Any, text: str) -> str:
    """The file name under which tracebacks and `inspect` find this text.

    Where the running cell is nothing but our magic, that is the cell's own name:
    its text becomes what the user typed, and "Cell In[3], line 5" is line 5 there.
    """
    running = _running_file(shell)
    if running is not None and _is_one_magic_call(linecache.getlines(running)):
        lines = [f"{line}\n" for line in text.splitlines()]
        entry = (len(text), None, lines, running)
        linecache.cache[running] = entry
        # IPython 7 restores its cells from a copy of its own.
        getattr(linecache, "_ipython_cache", {})[running] = entry
        return running
    number = cell_numbers(shell).get(running, shell.execution_count)
    return str(shell.compile.cache(text, number))


def _running_file(shell: Any) -> str | None:
    """The file name of the nearest caller that is a cell of this shell."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals is shell.user_global_ns and frame.f_locals is shell.user_ns:
            return frame.f_code.co_filename
        frame = frame.f_back
    return None


def _is_one_magic_call(lines: list[str]) -> bool:
    """Whether a source is nothing but what IPython makes of a cell magic."""
    match ast.parse("".join(lines)).body if len(lines) == 1 else []:
        case [ast.Expr(ast.Call(func) | ast.Await(ast.Call(func)))]:
            return ast.unparse(func) == "get_ipython().run_cell_magic"
    return False


def _is_coroutine(code: CodeType | None) -> bool:
    """Whether running this code gives something to be awaited."""
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


def _without_our_frame(error: BaseException) -> BaseException:
    """The error with a traceback that begins in the user's code."""
    ours: TracebackType | None = error.__traceback__
    users = ours.tb_next if ours is not None else None
    return error if users is None else error.with_traceback(users)


class RepeatableCell:
    """A body that is compiled once and run again and again; its value is dropped.

    All of its statements are one code object, so that a run costs a tenth of a
    microsecond beyond what the code itself takes.
    """

    def __init__(self, shell: Any, body: str, *, magic_line: str = "") -> None:
        source = _parse_cell(shell, body, magic_line=magic_line)
        module = ast.Module(source.nodes, [])
        (self._code,) = compile_nodes(shell, [module], source.name)
        self.name = source.name
        self._namespaces = shell.user_global_ns, shell.user_ns
        self.is_empty = not source.nodes
        self.needs_await = _is_coroutine(self._code)

    def __call__(self, calls: int = 1) -> None:
        """Run it so many times."""
        __tracebackhide__ = True
        code, namespaces = self._code, self._namespaces
        for _ in itertools.repeat(None, calls):
            exec(code, *namespaces)


def own_part(body: object, error: BaseException) -> BaseException:
    """An error of a body with a traceback that begins in the body.

    Ctrl-C between two runs is nobody's: where we were then tells nobody anything.
    """
    traceback = error.__traceback__
    name = getattr(body, "name", None)
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == name:
            return error.with_traceback(traceback)
        traceback = traceback.tb_next
    return error.with_traceback(None) if isinstance(error, KeyboardInterrupt) else error


# What IPython needs to see before it sees the magic --------------------


class CellTransform:
    """An input transform that knows the names of our cell magics."""

    # Not asked by IPython when it only wonders whether an input is complete: its
    # rule for the end of a cell magic looks at the first line, which we may change.
    has_side_effects = True

    def __init__(
        self, shell: Any, names: Collection[str], elsewhere: Collection[str] = ()
    ) -> None:
        self._shell = shell
        self._names = frozenset(names)
        self._elsewhere = frozenset(elsewhere)

    def __call__(self, lines: list[str]) -> list[str]:
        """The lines of a cell, changed only where one of our magics needs it."""
        match = _MAGIC_LINE.match(lines[0]) if lines else None
        if match is None or match[1] not in self._names or len(lines) == 1:
            return lines
        body = "".join(lines[1:])
        try:
            awaits = self._awaits(body)
        except (SyntaxError, ValueError, OverflowError):
            return ["\n", *lines[1:]]
        except Exception:  # noqa: BLE001 -- the magic meets it in its turn, and tells it
            return lines
        name, line = match.groups()
        if not awaits or name in self._elsewhere:
            return lines
        call = f"get_ipython().run_cell_magic({name!r}, {line!r}, {body!r})"
        return [f"await {call}\n"]

    def _awaits(self, body: str) -> bool:
        """Whether the body needs a loop; raises what compiling it raises."""
        compiler = self._shell.compile
        flags = compiler.flags
        try:
            tree = compiler.ast_parse(self._shell.transform_cell(body))
            nodes = [ast.Module([node], []) for node in tree.body]
            codes = compile_nodes(self._shell, nodes, "<cell>")
        finally:
            compiler.flags = flags  # a `from __future__` must not count yet
        return any(code.co_flags & inspect.CO_COROUTINE for code in codes)


def keep_cell_numbers(shell: Any, undo: ExitStack) -> None:
    """From now on `shell.compile` knows each cell by its file, as from IPython 8 on.

    The file of a kernel's cell is a hash of its text, which nobody recognises.
    """
    compiler = shell.compile
    if hasattr(compiler, "_filename_map"):
        return
    cache, numbers = compiler.cache, {}

    def numbered(code: str, number: int = 0, raw_code: str | None = None) -> str:
        name: str = cache(code, number, raw_code)
        numbers[name] = number
        return name

    compiler.cache, compiler._filename_map = numbered, numbers  # noqa: SLF001
    undo.callback(delattr, compiler, "cache")
    undo.callback(delattr, compiler, "_filename_map")
