"""Breaks rooms at random places and counts what the tests notice: `make mutants`.

The package and its tests are copied, and so many small faults planted in functions of
each room, all of them asleep. One run of the rooms' tests shows which test passes by
which fault, in children of the tests too. Then each fault is woken in a process of its
own, forked off one that has torch, and the tests that pass by it run until one fails.
So a fault takes seconds and not a whole run. mutmut does the same within one process;
half of what these rooms do happens in others.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SEED = 1
PATIENCE_S = 90.0  # tests of one fault; those that have not begun by then do not count
FIRST = 60  # this many tests at first, of as many files as there are
_NONE = "No room differs from main: name one, as in make mutants ROOM=gpu_mem."
ENDS_WELL = (0, 5)  # of pytest's: all passed, none was chosen
REACHED = "reached.tsv"
TESTS = "tests.tsv"

# In every process of the copy: which fault is awake, and who has passed by which.
AWAKE = '''
"""Tells planted faults which of them is awake."""
import builtins, os
awake = int(os.environ.get("PLANTED_AWAKE", "0"))
_log, _seen = os.environ.get("PLANTED_LOG"), set()

def _planted(number):
    if not _log:
        return number == awake
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rsplit(" (", 1)[0]
    if (number, test) not in _seen:
        _seen.add((number, test))
        with open(_log, "a") as log:
            log.write(f"{number}\\t{test}\\n")
    return False

builtins._planted = _planted
'''

# In a process of tests: how long each took, and the first that failed.
PLUGIN = '''
"""Keeps how long tests take and which failed."""
import os

def pytest_runtest_logreport(report):
    if report.failed or (report.when == "call" and report.passed):
        with open(os.environ["PLANTED_TESTS"], "a") as log:
            log.write(f"{report.nodeid}\\t{report.outcome}\\t{report.duration:.3f}\\n")
'''

SWAPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=",
    ast.NotEq: "==", ast.Is: "is not", ast.IsNot: "is", ast.In: "not in",
    ast.NotIn: "in", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*",
    ast.FloorDiv: "*", ast.Mod: "*",
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """One small change of the program, asleep until its number is called."""

    number: int
    room: str
    file: str
    line: int
    was: str
    becomes: str


# Planting -----------------------------------------------------------------------------


def plant(tree: Path, room: str, how_many: int, seed: int, first: int) -> list[Fault]:
    """Plant faults in a room of a copy, at places chosen by chance."""
    places = [
        (file, *place)
        for file in sorted((tree / "gpumagic" / room).rglob("*.py"))
        for place in faults_of(file.read_text("utf-8"))
    ]
    random.Random(f"{seed} {room}").shuffle(places)  # noqa: S311
    chosen: list[tuple[Path, int, int, str]] = []
    for file, begin, end, becomes in places:
        # One within another could not both be written down.
        if all(file != f or end <= b or e <= begin for f, b, e, _ in chosen):
            chosen.append((file, begin, end, becomes))
        if len(chosen) == how_many:
            break
    planted = []
    # From a file's end to its beginning: what is written then moves no other place.
    for file, begin, end, becomes in sorted(chosen, key=lambda of: (of[0], -of[1])):
        text = file.read_text("utf-8")
        number, was = first + len(planted), text[begin:end]
        awake = f"(({becomes}) if _planted({number}) else ({was}))"
        file.write_text(text[:begin] + awake + text[end:], "utf-8")
        line = text.count("\n", 0, begin) + 1
        name = str(file.relative_to(tree))
        planted.append(Fault(number, room, name, line, was, becomes))
    return planted


def faults_of(text: str) -> Iterator[tuple[int, int, str]]:
    """Each expression in a function that could be another: from, to, into what."""
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line.encode()))
    raw = text.encode()

    def place(node: ast.AST) -> tuple[int, int]:
        begin = lines[node.lineno - 1] + node.col_offset
        end = lines[node.end_lineno - 1] + node.end_col_offset
        return len(raw[:begin].decode()), len(raw[:end].decode())

    for node in _in_functions(ast.parse(text)):
        for target, becomes in _changes(node):
            yield (*place(target), becomes)


def _in_functions(tree: ast.Module) -> Iterator[ast.AST]:
    """What runs when a function is called; formatted strings cannot be taken apart."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _within(statement)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(
        node,
        ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr
        | ast.Lambda | ast.Match,
    ):  # fmt: skip
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _within(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What an expression could be by mistake."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPPED:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield node, f"({left}) {SWAPPED[type(op)]} ({right})"
        case ast.BinOp(op=op) if type(op) in SWAPPED:
            left, right = ast.unparse(node.left), ast.unparse(node.right)
            yield node, f"({left}) {SWAPPED[type(op)]} ({right})"
        case ast.BoolOp(op=op):
            other = " or " if isinstance(op, ast.And) else " and "
            yield node, other.join(f"({ast.unparse(each)})" for each in node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node, ast.unparse(node.operand)
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield value, "None"
        case ast.If(test=test):
            yield test, f"not ({ast.unparse(test)})"
        case ast.Expr(value=ast.Call() as call):
            yield call, "None"


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


# Running ------------------------------------------------------------------------------


def copy_of(source: Path, into: Path) -> Path:
    """The files that git knows, so that nobody's own are touched."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=source, capture_output=True, check=True
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, into / name)
    (into / "sitecustomize.py").write_text(AWAKE)
    (into / "planted_plugin.py").write_text(PLUGIN)
    return into


def look_who_passes(
    tree: Path, tests: list[str], processes: int, *, quick: bool
) -> None:
    """Run tests with every fault asleep, and keep which passes by which.

    Args:
        tree: The copy.

        tests: Files or folders of it.

        processes: So many at once.

        quick: Whether kernels are left out, and files with a process of their own.
    """
    quickly = ["--ignore-glob=*/test_in_process.py"] if quick else []
    wanted = "not browser and not hardware" + (" and not kernel" if quick else "")
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "planted_plugin", "-n", str(processes), "--dist", "worksteal"),
            *("-m", wanted, *quickly, *tests),
        ],
        cwd=tree,
        env=_environment(tree, PLANTED_LOG=str(tree / REACHED)),
        stdout=(tree / "first_run.log").open("w"),
        stderr=subprocess.STDOUT,
        check=False,
    )


def _environment(tree: Path, **more: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    kept = {"PLANTED_TESTS": str(tree / TESTS)}
    return {**os.environ, **own, **kept, **more}


@dataclass
class Passing:
    """What the run with sleeping faults has shown."""

    by_fault: dict[int, set[str]]
    seconds: dict[str, float]

    @classmethod
    def read(cls, tree: Path) -> Passing:
        """Read what its processes have written; who failed then is not asked again."""
        seconds: dict[str, float] = {}
        failed = set()
        for line in (tree / TESTS).read_text().splitlines():
            test, outcome, duration = line.split("\t")
            seconds[test] = float(duration)
            if outcome == "failed":
                failed.add(test)
        by_fault: dict[int, set[str]] = {}
        for line in (tree / REACHED).read_text().splitlines():
            number, _, test = line.partition("\t")
            if "::" in test and test not in failed:
                by_fault.setdefault(int(number), set()).add(test)
        return cls(by_fault, seconds)

    def tests_of(self, number: int) -> list[list[str]]:
        """Tests by process: what of many files comes quickly first, then the others.

        Files that switch the simulator on have a process each, since that lasts.
        """
        found = sorted(
            self.by_fault.get(number, ()), key=lambda test: self.seconds.get(test, 0.0)
        )
        alone: dict[str, list[str]] = {}
        here: dict[str, list[str]] = {}
        for test in found:
            file = test.partition("::")[0]
            own = Path(file).name.startswith("torch_")
            (alone if own else here).setdefault(file, []).append(test)
        # In turn one test of each file, so that the first few ask differently.
        turns = [
            test
            for _, test in sorted(
                (turn, test)
                for tests in here.values()
                for turn, test in enumerate(tests)
            )
        ]
        parts = [turns[:FIRST], *list(alone.values())[:3], turns[FIRST:]]
        return [part for part in [*parts, *list(alone.values())[3:]] if part]


class Mother:
    """A process that has imported what is slow, and forks one for each part."""

    def __init__(self, tree: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mutants", "--mother"],
            cwd=tree,
            env=_environment(tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, awake: int, tests: list[str], patience_s: float) -> dict[str, Any]:
        """Whether one of the tests fails while a fault is awake, and which."""
        question = {"awake": awake, "tests": tests, "patience_s": patience_s}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())  # type: ignore[no-any-return]

    def leave(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def answer_questions() -> None:
    """Be the process that forks: one question in a line, one answer in a line."""
    import IPython
    import numpy as np
    import pytest
    import rich.console
    import torch

    _ = IPython, np, rich.console, torch  # what every child would import
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        question = json.loads(line)
        folder = Path.cwd() / "answers" / str(os.getpid())
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / TESTS
        kept.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            os.setsid()
            _be_child(question, folder, pytest)
        ended = _wait(child, question["patience_s"])
        failed = [
            each.split("\t")[0]
            for each in (kept.read_text().splitlines() if kept.exists() else [])
            if each.split("\t")[1] == "failed"
        ]
        answers.write(json.dumps({"ended": ended, "failed": failed}) + "\n")
        answers.flush()


def _be_child(question: dict[str, Any], folder: Path, pytest: Any) -> None:
    import sitecustomize

    sitecustomize.awake = question["awake"]
    os.environ["PLANTED_AWAKE"] = str(question["awake"])
    os.environ["PLANTED_TESTS"] = str(folder / TESTS)
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for here, there in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(here, there)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "planted_plugin"]
    code = 3
    try:
        code = int(pytest.main([*options, *question["tests"]]))
    except BaseException:  # noqa: BLE001 -- told in the log; this process ends here
        traceback.print_exc()
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)


def _wait(child: int, patience_s: float) -> int | str:
    """How it ended; one that goes on for too long is killed with all it has started."""
    until = time.monotonic() + patience_s
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done or time.monotonic() > until:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            if done:
                return os.waitstatus_to_exitcode(status)
            os.waitpid(child, 0)
            return "hung"
        time.sleep(0.02)


def judge(mother: Mother, fault: Fault, passing: Passing, wrong: set[str]) -> str:
    """By what a fault is noticed; "" if by nothing.

    Args:
        mother: Where its tests run.

        fault: The one to wake.

        passing: Who passes by it.

        wrong: Tests known to fail in such a process anyway; grows by those found.
    """
    until = time.monotonic() + PATIENCE_S
    for part in passing.tests_of(fault.number):
        tests = [test for test in part if test not in wrong]
        while tests and time.monotonic() < until:
            usual = sum(passing.seconds.get(test, 0.5) for test in tests)
            answer = mother.ask(fault.number, tests, 15 + 4 * min(usual, PATIENCE_S))
            if not answer["failed"]:
                if answer["ended"] in ENDS_WELL:
                    break
                # Without the fault it must end well, or nothing is known.
                ended = mother.ask(0, tests, PATIENCE_S)["ended"]
                if ended in (*ENDS_WELL, 1):
                    return f"the process: {answer['ended']}"
                raise RuntimeError(f"tests end with {ended} where no fault is awake")
            test = answer["failed"][0]
            if not mother.ask(0, [test], 60)["failed"]:
                return str(test)
            wrong.add(test)
            tests = [each for each in tests if each not in wrong]
    return ""


def main() -> int:
    """Plant, look who passes, wake one after another, and tell."""
    arguments = _arguments()
    if arguments.mother:
        answer_questions()
        return 0
    from tests.quick import changed_files, rooms_of  # older copies have no such file

    rooms = arguments.rooms or rooms_of(changed_files())
    source = Path(arguments.source).resolve()
    unknown = [each for each in rooms if not (source / "gpumagic" / each).is_dir()]
    if unknown or not rooms:
        sys.exit(f"There is no room {', '.join(unknown)}." if unknown else _NONE)
    tree = Path(arguments.copy).resolve()
    shutil.rmtree(tree, ignore_errors=True)
    copy_of(source, tree)
    shutil.copy2(__file__, tree / "tests" / Path(__file__).name)
    faults: list[Fault] = []
    for room in rooms:
        faults += plant(tree, room, arguments.number, arguments.seed, len(faults) + 1)
    tests = [f"tests/{each}" for each in [*rooms, *arguments.also]]
    look_who_passes(tree, tests, arguments.processes, quick=arguments.quick)
    results = wake(tree, faults, arguments.processes)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=1) + "\n")
    for room in rooms:
        of_room = [each for each in results if each["room"] == room]
        noticed = sum(bool(each["noticed"]) for each in of_room)
        passed = sum(bool(each["tests"]) for each in of_room)
        _tell(f"{room}: {noticed} of {len(of_room)} noticed, {passed} passed by")
    return 0


def wake(tree: Path, faults: list[Fault], processes: int) -> list[dict[str, Any]]:
    """Wake one fault after another, in some processes, and say what notices it."""
    passing = Passing.read(tree)
    waiting, wrong = list(faults), set[str]()
    results: list[dict[str, Any]] = []

    def work() -> None:
        mother = Mother(tree)
        while waiting:
            fault = waiting.pop(0)
            passed_by = len(passing.by_fault.get(fault.number, ()))
            noticed = judge(mother, fault, passing, wrong) if passed_by else ""
            results.append(asdict(fault) | {"tests": passed_by, "noticed": noticed})
            _tell(_told(results[-1]))
        mother.leave()

    with ThreadPoolExecutor(processes) as pool:
        for each in [pool.submit(work) for _ in range(processes)]:
            each.result()
    return results


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _told(result: dict[str, Any]) -> str:
    verdict = "noticed" if result["noticed"] else f"UNSEEN by {result['tests']} tests"
    was, becomes = (" ".join(result[of].split()) for of in ("was", "becomes"))
    return f"{verdict}: {result['file']}:{result['line']}: {was} -> {becomes}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rooms", nargs="*", help="those changed, if none")
    parser.add_argument("--number", type=int, default=50, help="faults in each room")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--also", nargs="*", default=["gallery"], help="more tests")
    parser.add_argument("--quick", action="store_true", help="tests in process alone")
    parser.add_argument("--source", default=str(ROOT), help="another checkout")
    parser.add_argument("--copy", default=str(ROOT / "build" / "mutants"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", help="a file for all of it, as JSON")
    parser.add_argument("--mother", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
