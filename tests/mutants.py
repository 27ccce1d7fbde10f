"""Breaks rooms at random places and counts what the tests notice: `make mutants`.

The package and its tests are copied, and so many small faults planted in functions of
each room, all of them asleep. One run of the rooms' tests shows which test passes by
which fault, in children of the tests too. Then each fault is woken in a pytest of its
own, and those that pass by it run until one fails: some seconds a fault, and not a
whole run. mutmut does the same within one process; half of what these rooms do happens
in others.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROOT = Path(__file__).parents[1]
SEED = 1
PATIENCE_S = 120.0  # for the tests of one fault
FIRST = 60  # this many tests at first, of as many files as there are
HUNG = "the process hung"
UNREAD = "a file of tests that cannot be imported then"
_NONE = "No room differs from main: name one, as in make mutants ROOM=gpu_mem."
MOST_FILES = 6  # that are run as a whole for one fault
FILES = "test_*.py torch_*.py"  # also those that others run in processes of their own
SHARED = "tests/gallery/test_golden.py"  # of all samples, which other tests share
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

PYTEST = [
    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("-p", "tests.mutants", "-o", f"python_files={FILES}"),
    "--continue-on-collection-errors",
]

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
    return into


def look_who_passes(
    tree: Path, tests: list[str], processes: int, *, quick: bool
) -> None:
    """Run tests with every fault asleep, and keep which passes by which."""
    wanted = "not browser and not hardware" + (" and not kernel" if quick else "")
    # Processes of tests that a test starts tell how long theirs took.
    env = _environment(
        tree, PLANTED_LOG=str(tree / REACHED), PYTEST_ADDOPTS="-p tests.mutants"
    )
    with (tree / "first_run.log").open("w") as said:
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
                *("-p", "tests.mutants", "-n", str(processes), "--dist", "worksteal"),
                *("-m", wanted, *tests),
            ],
            cwd=tree,
            env=env,
            stdout=said,
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

    def __post_init__(self) -> None:
        self._passes = Counter(chain.from_iterable(self.by_fault.values()))

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

    def tests_of(self, number: int) -> list[str]:
        """Who passes by a fault, in turn one test of each file.

        Of a file those come first that pass by few others, which mostly are about the
        place; so few have to be asked.
        """
        found = sorted(
            self.by_fault.get(number, ()),
            key=lambda test: (self._passes[test], self.seconds.get(test, 0.0)),
        )
        turns: dict[str, int] = {}
        places = {}
        for test in found:
            file = test.partition("::")[0]
            turns[file] = turns.get(file, 0) + 1
            places[test] = turns[file]
        return sorted(found, key=places.__getitem__)


# What follows runs in processes of tests, to which this module is a plugin of pytest.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave those that are asked, in their order; a file asks for all of its own."""
    if asked := json.loads(os.environ.pop("PLANTED_ASKED", "[]")):
        by_name = {each.nodeid: each for each in items}
        chosen = [by_name[test] for test in asked if test in by_name]
        of_files = [each for each in items if each.nodeid.split("::")[0] in asked]
        items[:] = chosen or of_files


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep how long tests take, and which failed."""
    of_a_worker = hasattr(report, "node")  # which has told it
    tells = report.failed or (report.when == "call" and report.passed)
    if tells and not of_a_worker:
        with Path(os.environ["PLANTED_TESTS"]).open("a") as log:
            log.write(f"{report.nodeid}\t{report.outcome}\t{report.duration:.3f}\n")


# Judging ------------------------------------------------------------------------------


def judge(tree: Path, fault: Fault, tests: list[str]) -> str:
    """By what a fault is noticed; "" if by nothing.

    Who passes by it while tests are collected, or a fixture of many is set up, is not
    known: at last all tests of their files are asked, and those of the samples.
    """
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    for asked in (tests[:FIRST], [*[*files][:MOST_FILES], SHARED]):
        noticing = _failing(tree, fault.number, asked) if asked else []
        for test in noticing:
            if test in (HUNG, UNREAD) or not _failing(tree, 0, [test]):
                return test
    return ""


def _failing(tree: Path, awake: int, tests: list[str]) -> list[str]:
    """Who fails in a process of its own while a fault is awake, or that it hung."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / TESTS
        env = _environment(
            tree,
            PLANTED_AWAKE=str(awake),
            PLANTED_TESTS=str(kept),
            PLANTED_ASKED=json.dumps(tests),
        )
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        process = subprocess.Popen(
            [*PYTEST, "-m", "", "--maxfail=3", *files],
            cwd=tree,
            env=env,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return [HUNG]
        rows = kept.read_text().splitlines() if kept.exists() else []
    named = [row.split("\t") for row in rows]
    failed = [test for test, outcome, _ in named if outcome == "failed"]
    return failed or [UNREAD] * (process.returncode not in (0, 5))


def main() -> int:
    """Plant, look who passes, wake one after another, and tell."""
    arguments = _arguments()
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
    """Wake one fault after another, some at once, and say what notices each."""
    passing = Passing.read(tree)

    def work(fault: Fault) -> dict[str, Any]:
        tests = passing.tests_of(fault.number)
        noticed = judge(tree, fault, tests)
        result = asdict(fault) | {"tests": len(tests), "noticed": noticed}
        _tell(_told(result))
        return result

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(work, faults))


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
    parser.add_argument("--quick", action="store_true", help="without kernels")
    parser.add_argument("--source", default=str(ROOT), help="another checkout")
    parser.add_argument("--copy", default=str(ROOT / "build" / "mutants"))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", help="a file for all of it, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
