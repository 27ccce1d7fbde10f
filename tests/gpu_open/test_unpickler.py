"""Pickles are read without running anything of them, or refused in two lines."""

from __future__ import annotations

import collections
import copyreg
import os
import pickle
import pickletools
import sys
import tracemalloc
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpumagic.errors import GpuMagicError
from gpumagic.gpu_open.unpickler import NEWEST_PROTOCOL, unpickled

PROTOCOLS = range(NEWEST_PROTOCOL + 1)
NEWEST = bytes([0x80, NEWEST_PROTOCOL])

# Every opcode there is stands in one of these; a new one makes a test fail.
HARMLESS = """
    INT BININT BININT1 BININT2 LONG LONG1 NONE NEWTRUE NEWFALSE FLOAT BINFLOAT UNICODE
    SHORT_BINUNICODE BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 EMPTY_LIST
    APPEND APPENDS LIST EMPTY_TUPLE EMPTY_DICT DICT SETITEM SETITEMS EMPTY_SET ADDITEMS
    POP DUP MARK POP_MARK GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE PROTO
    STOP FRAME
"""
OF_NUMBERS_ONLY = "TUPLE TUPLE1 TUPLE2 TUPLE3"
REFUSED = """
    LONG4 STRING BINSTRING SHORT_BINSTRING BYTEARRAY8 NEXT_BUFFER READONLY_BUFFER
    FROZENSET EXT1 EXT2 EXT4 GLOBAL STACK_GLOBAL REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX
    PERSID BINPERSID
"""
PLAIN = {dict, list, tuple, set, str, bytes, int, float, bool, type(None)}
CODES = {each.name: each.code.encode("latin-1") for each in pickletools.opcodes}
ARGUMENTS = {
    "LONG4": b"\x01\x00\x00\x00\x01",
    "STRING": b"'a'\n",
    "BINSTRING": b"\x01\x00\x00\x00a",
    "SHORT_BINSTRING": b"\x01a",
    "BYTEARRAY8": bytes([1, *[0] * 7]) + b"a",
    "EXT1": b"\x01",
    "EXT2": b"\x01\x00",
    "EXT4": b"\x01\x00\x00\x00",
    "GLOBAL": b"trap_of_a_test\nrun\n",
    "INST": b"trap_of_a_test\nrun\n",
    "PERSID": b"1\n",
}


@pytest.fixture
def trap():
    """A function that notes its being called, importable and in copyreg."""
    called = []
    module = types.ModuleType("trap_of_a_test")

    def run(*_: object) -> None:
        called.append("called")

    def looked_up(name: str) -> object:
        called.append(f"looked up {name}")
        raise AttributeError(name)

    module.run = run
    run.__module__, run.__qualname__ = module.__name__, "run"
    sys.modules[module.__name__] = module
    copyreg.add_extension(module.__name__, "run", 1)
    assert pickle.loads(b"\x80\x02\x82\x01.") is run  # noqa: S301 -- now it is cached
    module.__getattr__ = looked_up
    yield called
    copyreg.remove_extension(module.__name__, "run", 1)
    del sys.modules[module.__name__]


def refusal(data, name="x.pickle"):
    """The error that data is refused with, which has two lines."""
    with pytest.raises(GpuMagicError) as refused:
        unpickled(data, name)
    assert len(refused.value.lines()) == 2
    assert all("\n" not in line for line in refused.value.lines())
    return refused.value


def read_or_refused(data):
    """What is read; None where it is refused in two lines. Nothing else is raised."""
    try:
        return unpickled(data, "x")
    except GpuMagicError as refused:
        lines = refused.lines()
    assert len(lines) == 2
    return None


# ------------------------------------------------------------------------ opcodes


def test_every_opcode_is_known_as_harmless_or_refused():
    """The table of Python's own opcodes has none that nobody here has thought of."""
    assert sorted(f"{HARMLESS} {OF_NUMBERS_ONLY} {REFUSED}".split()) == sorted(CODES)


@pytest.mark.parametrize("name", REFUSED.split())
def test_what_could_call_is_refused(name, trap):
    """An opcode that makes, calls or finds an object ends it, and nothing has run."""
    opcode = CODES[name] + ARGUMENTS.get(name, b"")
    names = b"\x8c\x0etrap_of_a_test\x8c\x03run"
    trap.clear()
    for before in (
        b"",
        names,
        b"(" + names,
        b"}",
        b"(}",
        b"]N",
        names + b")",
        b"K\x01)}",
    ):
        refusal(NEWEST + before + opcode + b".")

    assert trap == []


def test_unknown_opcodes_are_refused():
    """A byte that is no opcode of today's Python is refused by its number."""
    for code in {*range(256)} - {each[0] for each in CODES.values()}:
        error = refusal(NEWEST + b"N" + bytes([code]) + b"N.")
        assert f"0x{code:02x}" in error.problem


def test_protocols_to_come_are_refused():
    """A protocol that nobody knows yet is named."""
    assert "protocol 6" in refusal(b"\x80\x06N.").problem


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (os.system, "system"),
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        (ValueError("x"), "ValueError"),
        (range(3), "range"),
        (1j, "complex"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_classes_and_functions_are_named(protocol, value, named):
    """The error names file, class and the line that makes JSON of it."""
    error = refusal(pickle.dumps({"segments": [value]}, protocol), "a.pickle")

    assert "a.pickle" in error.problem
    assert named in error.problem
    assert "json.dump(pickle.load(open('a.pickle', 'rb'))" in error.hint


def test_the_way_out_runs_where_the_file_is_trusted(tmp_path):
    """The line of the hint, as it stands there, makes a JSON file of the pickle."""
    import shlex
    import subprocess

    file = tmp_path / "a.pickle"
    file.write_bytes(pickle.dumps(collections.OrderedDict(segments=[])))
    line = refusal(file.read_bytes(), file.name).hint.partition("made: ")[2]
    _, *words = shlex.split(line)
    subprocess.run([sys.executable, *words], check=True, cwd=tmp_path)

    assert (tmp_path / "a.pickle.json").read_text() == '{"segments": []}'


@pytest.mark.parametrize("name", ["a b.pickle", "a'b", 'a"; rm x', "$(x).pickle", "\n"])
def test_no_name_of_a_file_gets_into_the_line_that_is_typed(name):
    """A name that a shell would read otherwise is left to the user to put in."""
    assert "open('FILE', 'rb')" in refusal(NEWEST + b"R.", name.strip() or "x y").hint


def test_names_out_of_the_file_cannot_paint_the_terminal():
    """What does not print is not printed, and what is long is cut."""
    error = refusal(b"c" + b"\x1b[31m" * 100 + b"\nrun\n.")

    assert "\x1b" not in error.problem
    assert len(error.problem) < 300


# ------------------------------------------------------------------- what is read

atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
)
flat = atoms | st.text() | st.tuples() | st.tuples(atoms) | st.tuples(atoms, atoms)
flat |= st.tuples(atoms, atoms, atoms) | st.lists(atoms, min_size=4).map(tuple)
plain = st.recursive(
    flat,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(plain, st.sampled_from(PROTOCOLS))
def test_plain_data_is_read_as_python_reads_it(value, protocol):
    """Numbers, text, lists, dicts, tuples of numbers come back from all protocols."""
    data = pickle.dumps(value, protocol)

    assert unpickled(data, "x") == value
    assert unpickled(pickletools.optimize(data), "x") == value


@given(st.sets(st.integers() | st.text()), st.binary(max_size=300))
def test_sets_and_bytes_are_read(found, data):
    """So are they from the protocols that have them as data."""
    for protocol in (4, 5):
        assert unpickled(pickle.dumps([found, data], protocol), "x") == [found, data]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_long_data_and_many_objects_are_read(protocol):
    """Each width in which a length or a number of an object is written is known."""
    many = [{"action": f"{n}", "frames": []} for n in range(70_000)]
    value = [many, "a" * 70_000, "ä" * 300, *many[:3], 1.5, -1, 1 << 40]

    assert unpickled(pickle.dumps(value, protocol), "x") == value


def test_what_is_shared_stays_so():
    """A list that is in two places, or in itself, is the same one."""
    found = []
    found += [found, found]

    read = unpickled(pickle.dumps(found), "x")

    assert read[0] is read[1] is read


@given(st.data())
@example(None)
def test_nothing_but_plain_data_or_an_error_comes_out(data):
    """Of any sequence of opcodes comes plain data or an error of two lines."""
    if data is None:
        return
    opcode = st.sampled_from(pickletools.opcodes).map(
        lambda each: each.code.encode("latin-1")
    )
    pieces = (
        opcode
        | st.binary(max_size=3)
        | st.sampled_from(
            [*ARGUMENTS.values(), b"K\x01", b"(", b"\x8c\x01a", b"}", b"]"]
        )
    )
    program = b"".join(data.draw(st.lists(pieces, max_size=30)))
    found = read_or_refused(program + b".")
    pending, met = [found], set()
    while pending:
        each = pending.pop()
        assert type(each) in PLAIN
        if id(each) not in met:
            met.add(id(each))
            pending += [*each, *each.values()] if type(each) is dict else []
            pending += each if type(each) in {list, tuple, set} else []


@given(st.data())
def test_a_cut_or_changed_pickle_is_an_error_or_plain(data):
    """Wherever a file is cut or a byte of it is another, there is no other error."""
    whole = pickle.dumps(
        {"segments": [{"a": (0, 1), "b": 1 << 40}], "x": ["y", {"z": 1.5}]},
        data.draw(st.sampled_from(PROTOCOLS)),
    )
    place = data.draw(st.integers(0, len(whole) - 1))
    assert "ends in the middle" in refusal(whole[:place]).problem
    changed = bytearray(whole)
    changed[place] = data.draw(st.integers(0, 255))
    read_or_refused(bytes(changed))


# -------------------------------------------------------------------------- bombs


def chain_of_tuples(depth):
    """Tuples each of which has the last one twice; its hash takes 2 ** depth steps."""
    value = (1, 2)
    for _ in range(depth):
        value = (value, value)
    return value


@pytest.mark.parametrize(
    "data",
    {
        "bytes of a terabyte": b"\x8e" + (1 << 40).to_bytes(8, "little") + b"a.",
        "text of a terabyte": b"\x8d" + (1 << 40).to_bytes(8, "little") + b"a.",
        "bytearray of a terabyte": b"\x96" + (1 << 40).to_bytes(8, "little") + b"a.",
        "number of a gigabyte": b"\x8b" + (1 << 30).to_bytes(4, "little") + b"a.",
        "digits": b"L" + b"9" * 100_000 + b"L\n.",
        "huge frame": b"\x95" + (1 << 60).to_bytes(8, "little") + b"N.",
        "memo of four thousand million": b"Nr\xff\xff\xff\xff.",
        "memo by text": b"Np4000000000\n.",
        "hash of tuples": b"}" + pickle.dumps(chain_of_tuples(60), 2)[2:-1] + b"Ns.",
        "empty dicts": b"(" + b"}" * 1_000_000 + b"l.",
        "empty sets": b"(" + b"\x8f" * 1_000_000 + b"l.",
        "deep": b"]" * 1_000_000 + b"a" * 999_999 + b".",
        "deep tuples": b")" + b"\x85" * 1_000_000 + b".",
        "marks": b"(" * 1_000_000 + b".",
        "nothing": b"",
        "text": b"a file of text",
    }.items(),
    ids=lambda each: each[0],
)
def test_small_files_that_cost_much_are_refused_at_once(data):
    """What would take memory or time out of proportion is an error at little cost."""
    tracemalloc.start()
    try:
        refusal(data[1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 64 << 20


def test_deep_nesting_alone_is_read():
    """Ten thousand lists in each other are no danger to a reader that does not walk."""
    found = unpickled(b"]" * 10_000 + b"a" * 9_999 + b".", "x")

    assert len(found) == 1
