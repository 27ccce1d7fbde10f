"""A cell under our magic line is seen as the plain cell is, in both real shells.

The same cells run in fresh processes: once under a comment, once under each of our
cell magics, and once under a comment with everything on that goes round every cell.
Line 1 is the comment or the magic, so all numbers must agree.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest

from tests.notebook.shells import Seen, see_in_kernel, see_in_terminal

OUR_LINE = re.compile(r"^(failed after|\d\S* \S?s on the host; no GPU was used)")
# And nothing of grammars, which reading a notebook would take seconds for.
NEEDS_SETUP = (
    "import builtins, os, sys; builtins.fired = []\n"
    "sys.modules.setdefault('rfc3987_syntax', None);"
)

CASES: dict[str, str] = {
    "an assignment persists": "a = 41",
    "the last expression is shown": "a + 1",
    "a display comes before the value": "display('first')\n'value'",
    "a trailing semicolon silences": "a + 1;",
    "a semicolon before a comment silences": "a + 1;  # done",
    "a semicolon inside a string does not": "'a;'",
    "None is not shown": "None",
    "the underscore is the last value": "_",
    "a printed line": "print('a    b')",
    "a multi-line string is unchanged": 's = """a\nb\n  c"""\ns',
    "a line magic": "%alias_magic pw pwd\n5",
    "a line magic's value is assigned": "here = %pwd\nhere == os.getcwd()",
    "a shell command": "!echo from the shell",
    "a shell command's lines": "lines = !echo one && echo two\nlines[1]",
    "braces in the code are code": "a = 3\nf'{a!r} {a}'",
    "a question mark": "len?\n6",
    "a nested cell magic": "%%writefile note.txt\nhello {a} $a",
    "what the nested cell magic did": "open('note.txt').read()",
    "a nested %%capture": "%%capture caught\nprint('x')\n9",
    "what was captured": "caught.stdout",
    "from __future__ in the first line": (
        "from __future__ import annotations\ndef f(x: missing): ...\nf.__annotations__"
    ),
    "from __future__ holds on": "def g(x: missing): ...\ng.__annotations__",
    "an await": "import asyncio\nawait asyncio.sleep(0.01, 'awaited')",
    "a silenced await": "await asyncio.sleep(0, 'silenced');",
    "an assignment after an await": "b = await asyncio.sleep(0, 7)\nb",
    "an async for": (
        "async def agen():\n    yield 1\nasync for each in agen():\n    print(each)"
    ),
    "an async comprehension": "[each async for each in agen()]",
    "an error after an await": "await asyncio.sleep(0)\n1/0",
    "a traceback": "def divide(n):\n    return 1 / n\n\ndivide(0)",
    "a traceback into an earlier cell": "x = 1\n\ndivide(0)",
    "a traceback under a loop": "for i in range(3):\n    if i == 2:\n        divide(0)",
    "a multi-line statement": "divide(\n    0\n)",
    "an exception group of one": "raise ValueError('a', 2)",
    "a chained exception": (
        "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e"
    ),
    "statements before the error ran": "c = 5\nraise KeyError(c)",
    "and stay": "c",
    "a syntax error": "d = 1\nif d\n    print(d)",
    "a syntax error runs nothing": "'d' in globals()",
    "an indentation error": "if True:\nd = 1",
    "an unterminated string": "d = 'abc",
    "a return outside a function": "e = 1\nreturn e",
    "an await of nothing awaitable": "await 3",
    "the source of a function": (
        "import inspect\ndef h(x):\n    # a comment\n    return x\ninspect.getsource(h)"
    ),
    "the source of a class": (
        "class K:\n    def m(self):\n        return 1\ninspect.getsource(K)"
    ),
    "the line number of a function": "def k(): pass\nk.__code__.co_firstlineno",
    "a nested cell's value": "nested = get_ipython().run_cell('1 + 1')\nnested.result",
    "a nested cell in mid-cell": "get_ipython().run_cell('5')\nprint('after')\n6",
    "a nested cell that fails": "get_ipython().run_cell('1/0').success",
    "a nested silent cell": "get_ipython().run_cell('7', silent=True).success",
    "a value shown in mid-cell": "sys.displayhook(8)\n9",
    "a traceback shown in mid-cell": (
        "try:\n    1/0\nexcept ZeroDivisionError:\n"
        "    get_ipython().showtraceback()\n10"
    ),
    "a nested %%time": "%%capture timed\n%%time\nt = 11\nt",
    "what it printed": "'Wall time' in timed.stdout, t",
    "a nested %%timeit": "%%capture timed\n%%timeit -n 1 -r 1\npass",
    "a nested %%prun": "%%capture timed\n%%prun -q\nu = 12",
    "a cell magic in a captured one": "%%capture outer\n%%capture inner\nprint('x')\n1",
    "what both have captured": "outer.stdout, inner.stdout",
    "a script": (
        "_ = open('script.py', 'w').write('v = 13\\nprint(v)')\n%run script.py\nv"
    ),
    "a script of cells": (
        "_ = open('cells.ipy', 'w').write('w0 = %pwd\\n14')\n"
        "%run cells.ipy\n'w0' in dir()"
    ),
    "a notebook": (
        "import json\n"
        "cell = {'cell_type': 'code', 'source': ['y0 = 15'], 'metadata': {},"
        " 'outputs': [], 'execution_count': None}\n"
        "json.dump({'cells': [cell], 'metadata': {}, 'nbformat': 4,"
        " 'nbformat_minor': 5}, open('of.ipynb', 'w'))\n"
        "%run of.ipynb\ny0"
    ),
    "the same cell again": "%%capture again\n%rerun -l 1",
    "a module is reloaded": (
        "%load_ext autoreload\n%autoreload 2\n"
        "sys.path.insert(0, '')\nsys.dont_write_bytecode = True\n"
        "_ = open('reloaded.py', 'w').write('def f(): return 1')\n"
        "import reloaded\nreloaded.f()"
    ),
    "after it has changed": (
        "_ = open('reloaded.py', 'w').write('def f(): return 22')\n"
        "os.utime('reloaded.py', (0, 2e9))"
    ),
    "its new code runs": "reloaded.f()",
    "modules are left alone again": "%autoreload 0",
    "a handler of the user's": (
        "def handled(shell, kind, error, tb, tb_offset=None):\n    print('handled')\n"
        "get_ipython().set_custom_exc((LookupError,), handled)"
    ),
    "meets the error": "{}['missing']",
    "and is taken out": "get_ipython().set_custom_exc((), None)",
    "a KeyboardInterrupt": "f = 1\nraise KeyboardInterrupt",
    "a real interrupt": (
        "import signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)"
    ),
    "a SystemExit": "sys.exit('enough')",
    "the next cell runs": "'still here'",
    "an error is kept once": "sys.last_value.__class__.__name__",
    "an exception is the very one": (
        "error = ValueError('mine')\nerror.mark = [1]\nraise error"
    ),
    "and is untouched": (
        "(sys.last_value is error, error.mark, error.args, error.__cause__,"
        " error.__context__, getattr(error, '__notes__', None))"
    ),
    "hooks are counted": (
        "ip = get_ipython()\n"
        "ip.events.register('pre_run_cell', lambda *_: fired.append('pre'))\n"
        "ip.events.register('post_run_cell', lambda *_: fired.append('post'))"
    ),
    "hooks fire once": "len(fired)",
    "every expression, if so configured": (
        "get_ipython().ast_node_interactivity = 'all'"
    ),
    "all are shown": "1\n2\n3",
    "assignments, if so configured": (
        "get_ipython().ast_node_interactivity = 'last_expr_or_assign'"
    ),
    "the assigned name is shown": "z = 11",
    "the annotated name is shown": "z: int = 12",
    "a tuple target is not": "p, q = 1, 2",
    "nothing, if so configured": "get_ipython().ast_node_interactivity = 'none'",
    "nothing is shown": "99",
    "the usual, again": "get_ipython().ast_node_interactivity = 'last_expr'",
    "a decorator sees the name of its module": "def n(): pass\nn.__module__, __name__",
    "the history is what was typed": "len(In), len(Out)",
    "a walrus at top level": "(w := 3) + w",
    "a pasted prompt": ">>> 3 + 4",
    "the namespace is clean": ("sorted(n for n in globals() if not n.startswith('_'))"),
    "the folder is clean": "sorted(os.listdir())",
}


# One that looks before and after, one that keeps the code, one that searches names.
MAGICS = (
    "%%gpu_doctor -q",
    "%%cuda_sync_time -q --name kept",
    "%%gpu_mem -q --lines",
    "%%pin_loader -q --watch",
)


# No magic line at all, but what goes round every cell.
ALWAYS_ON = "%cuda_sync_time on\n%gpu_mem on"


SETUP = ["%load_ext gpumagic", NEEDS_SETUP]


def _plain_cells(see) -> list[Seen]:
    return _see(see, [*SETUP, "None"], [_plain(body) for body in CASES.values()])


def _beside_ours(see, magic, plain) -> dict[str, tuple[Seen, Seen]]:
    """What is seen of each case: of the plain cell, and of ours."""
    if magic == ALWAYS_ON:
        ours = _see(see, [*SETUP, ALWAYS_ON], [_plain(body) for body in CASES.values()])
        assert sum(len(each.shown) for each in ours) > len(CASES) / 2
        ours = [_without_our_line(each) for each in ours]
    else:
        cells = [f"{magic}  # ours\n{body}" for body in CASES.values()]
        ours = _see(see, [*SETUP, "None"], cells)
    return dict(zip(CASES, zip(plain, ours, strict=True), strict=True))


def _see(see, setup: list[str], cells: list[str]) -> list[Seen]:
    seen = see(setup + cells)
    for each in seen[: len(setup)]:
        assert each.status == "ok", each
    return seen[len(setup) :]


def _without_our_line(seen: Seen) -> Seen:
    """What is seen besides the line that comes after each cell."""
    others = [each for each in seen.shown if not OUR_LINE.search(each["text/plain"])]
    assert len(seen.shown) - len(others) <= 1, seen
    return replace(seen, shown=others)


def _plain(body: str) -> str:
    """The body under a comment, unless IPython only knows it in the first line."""
    return body if body.startswith(("%%", ">>>")) else f"# plain\n{body}"


@pytest.fixture(scope="module")
def plain_in_terminal():
    """Every case in a terminal IPython, as a plain cell."""
    return _plain_cells(see_in_terminal)


@pytest.fixture(scope="module", params=(*MAGICS, ALWAYS_ON))
def in_terminal(request, plain_in_terminal):
    """Every case in a terminal IPython, plain and ours."""
    return _beside_ours(see_in_terminal, request.param, plain_in_terminal)


@pytest.fixture(scope="module")
def plain_in_kernel():
    """Every case in a Jupyter kernel, as a plain cell."""
    return _plain_cells(see_in_kernel)


@pytest.fixture(scope="module", params=(*MAGICS, ALWAYS_ON))
def in_kernel(request, plain_in_kernel):
    """Every case in a Jupyter kernel, plain and ours."""
    return _beside_ours(see_in_kernel, request.param, plain_in_kernel)


@pytest.mark.parametrize("case", CASES)
def test_terminal_cell_is_as_the_plain_one(in_terminal, case):
    """In a terminal, the cell is seen as without the magic line."""
    _assert_same(*in_terminal[case])


@pytest.mark.kernel
@pytest.mark.parametrize("case", CASES)
def test_kernel_cell_is_as_the_plain_one(in_kernel, case):
    """In a Jupyter kernel, the cell is seen as without the magic line."""
    _assert_same(*in_kernel[case])


def test_the_table_can_see_a_difference(in_terminal):
    """The cases really come to values, errors and frames, so they can differ."""
    plain = [pair[0] for pair in in_terminal.values()]
    assert sum(seen.result is not None for seen in plain) > 20
    assert sum(seen.status == "error" for seen in plain) > 12
    assert sum(bool(seen.frames) for seen in plain) > 8


def _assert_same(plain: Seen, ours: Seen) -> None:
    assert ours.status == plain.status, (plain, ours)
    assert ours.result == plain.result
    assert _stable(ours.printed) == _stable(plain.printed)
    assert ours.shown == plain.shown
    assert _stable(ours.error or "") == _stable(plain.error or "")
    # The one difference: the frame of the magic line itself comes first.
    frames = [frame for frame in ours.frames if not frame[1].startswith("# %%")]
    assert frames == plain.frames, ours.traceback
    if plain.error and plain.error.startswith(("SyntaxError", "Indentation")):
        assert _stable(ours.traceback) == _stable(plain.traceback)


def _stable(text: str) -> str:
    """Without what differs: hashes, process numbers, addresses, the first line."""
    text = re.sub(r"^( *1 # ).*$", r"\1", text, flags=re.MULTILINE)
    text = re.sub(r"-[0-9a-f]{12}>|ipykernel_\d+/\d+|\d+\.py|0x[0-9a-f]+", "#", text)
    return re.sub(rf"{re.escape(sys.prefix)}\S*", "@", text)
