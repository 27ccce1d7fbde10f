"""Faults that `make mutants` plants."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import faults_of, plant

CODE = '''"""A module."""
LIMIT = 3


def judge(a: int, b: int = 2, *, strict: bool = False) -> str | None:
    """Judge a pair: 1 + 1 here is no code."""
    pairs = [x for x in range(4) if x != a]
    if (total := a + b) > LIMIT and not strict:
        return f"{total + 1} of {len(pairs)}"
    a.bit_length()
    return "none"
'''


@pytest.fixture
def tree(tmp_path):
    """A room with one file."""
    (tmp_path / "gpumagic" / "room").mkdir(parents=True)
    (tmp_path / "gpumagic" / "room" / "judge.py").write_text(CODE)
    return tmp_path


def run(tree, awake, *given, **options):
    """What the function gives while one fault is awake."""
    names = {"_planted": lambda number: number == awake, "__builtins__": builtins}
    exec((tree / "gpumagic" / "room" / "judge.py").read_text(), names)  # noqa: S102
    try:
        return names["judge"](*given, **options)
    except (TypeError, ZeroDivisionError) as error:
        return type(error)


CASES = [((1, 1), {}), ((2, 2), {}), ((1, 2), {}), ((2, 2), {"strict": True})]


def test_asleep_they_change_nothing_and_awake_each_does_something(tree):
    """A fault that nobody wakes is not there; most of those awake are told apart."""
    before = [run(tree, 0, *given, **options) for given, options in CASES]
    faults = plant(tree, "room", 50, 1, first=1)

    after = [run(tree, 0, *given, **options) for given, options in CASES]
    changed = {
        each.becomes
        for each in faults
        if [run(tree, each.number, *given, **options) for given, options in CASES]
        != before
    }

    assert after == before
    assert {"None", "(x) == (a)"} <= changed
    assert len(changed) >= len(faults) // 2


def test_they_lie_in_functions_and_not_in_words(tree):
    """Constants of the module, defaults, docstrings and formatted strings stay."""
    text = (tree / "gpumagic" / "room" / "judge.py").read_text()
    places = {text[begin:end] for begin, end, _ in faults_of(text)}

    assert {"a + b", "x != a", "not strict", "a.bit_length()"} <= places
    assert not {"3", "1 + 1", "total + 1", "False"} & places


ASKING = {
    "tests/room/test_judge.py": "from gpumagic.room.judge import judge\n"
    "from gpumagic.room.sample import sample\n"
    "def test_one(): assert judge(2, 2) == '5 of 3'\n"
    "def test_without_a_look(): sample()\n",
    "tests/room/torch_judge.py": "from gpumagic.room.judge import judge\n"
    "def test_strict(): assert judge(2, 2, strict=True) == 'none'\n",
    mutants.SHARED: "from gpumagic.room.sample import sample\n"
    "SHARED = sample()\n"
    "def test_shared(): assert SHARED == 2\n",
    "gpumagic/room/sample.py": "def sample():\n    return 1 + 1\n",
}


def test_who_notices_a_fault_is_found(tree, monkeypatch):
    """A file of the rooms, one with a process of its own, or what tests share."""
    for name, text in ASKING.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    for package in ("gpumagic", "gpumagic/room", "tests", "tests/room"):
        (tree / package / "__init__.py").touch()
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    kernel: a kernel\n")
    Path(tree / "tests" / "mutants.py").write_text(Path(mutants.__file__).read_text())
    (tree / "sitecustomize.py").write_text(mutants.AWAKE)
    (tree / "tests" / "room" / "test_in_process.py").write_text(
        "import subprocess, sys\n"
        "def test_in_another(): subprocess.run([sys.executable, '-m', 'pytest', '-q',\n"
        "    'tests/room/torch_judge.py'], check=True)\n"
    )
    faults = plant(tree, "room", 50, 1, first=1)
    monkeypatch.setattr(mutants, "_tell", lambda _: None)

    mutants.look_who_passes(tree, ["tests/room"], 1, quick=True)
    found = {
        (Path(each["file"]).stem, each["was"]): each["noticed"].partition("::")[0]
        for each in mutants.wake(tree, faults, 1)
    }
    by_sample = {by for (file, _), by in found.items() if file == "sample"}

    assert found["judge", "a + b"] == "tests/room/test_judge.py"
    assert found["judge", '"none"'] == "tests/room/torch_judge.py"
    assert found["judge", "a.bit_length()"] == ""
    assert by_sample == {mutants.SHARED}
