"""Unpickles plain data, and runs nothing: every class and function is refused by name.

A pickle is a program for a small stack machine. Before Python's own machine, which is
fast, sees it, it is read opcode by opcode against a list of those that build plain
containers. All others, of all protocols and of those to come, end it: nothing of the
file has been run, and nothing that it names has been looked up.

A few that are harmless alone are refused as well, since snapshots have none and they
make a small file cost a lot: tuples within tuples, whose hashes take twice as long with
each level, frozen sets, numbers of thousands of digits.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import re
from typing import TYPE_CHECKING, Any, NoReturn

from gpumagic.errors import GpuMagicError, first_line
from gpumagic.report.units import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

NEWEST_PROTOCOL = 5
_LONGEST_NAME = 80

# Numbers and the like: what tuples may be made of.
_ATOM = rb"""(?:
    J.{4} | K. | M.. | G.{8}          # BININT, BININT1, BININT2, BINFLOAT
    | \x8a (?:\x06.{6} | \x07.{7} | \x05.{5} | \x04.{4} | \x08.{8} | \x09.{9} | \x03.{3}
        | \x02.{2} | \x01. | \x00)                                           # LONG1
    | [N\x88\x89]                     # NONE, NEWTRUE, NEWFALSE
    | I-?[0-9]{1,25}\n | L-?[0-9]{1,25}L?\n | F[-+.0-9a-z]{1,40}\n  # INT, LONG, FLOAT
)"""
# What needs no look at its argument, the most frequent first. Possessive, so that
# nothing is kept to go back to.
_HARMLESS = re.compile(
    rb"""(?:
    [hq]. | j.{4}                           # BINGET, BINPUT, LONG_BINGET
    | []})\x94eusa\x8f\x90dl012]            # what has no argument, but MARK
    | ATOM (?: \x85 | ATOM \x86 | ATOM ATOM \x87)?    # also TUPLE1, TUPLE2, TUPLE3
    | \( (?: ATOM{0,64}+ t)?                # MARK, also with TUPLE
    | \x95.{8} | V[^\n]*\n | g[0-9]{1,9}\n  # FRAME, UNICODE, GET
    )*+""".replace(b"ATOM", _ATOM),
    re.DOTALL | re.VERBOSE,
)
_COUNTED = {  # data of a length that comes first, and how many bytes tell it
    b"\x8c": 1,  # SHORT_BINUNICODE
    b"X": 4,  # BINUNICODE
    b"\x8d": 8,  # BINUNICODE8
    b"C": 1,  # SHORT_BINBYTES
    b"B": 4,  # BINBYTES
    b"\x8e": 8,  # BINBYTES8
    b"\x8a": 1,  # LONG1
}
# Whose argument can be wrong in no other way than by missing.
_OF_ANY_BYTES = frozenset({b"J", b"K", b"M", b"G", b"h", b"q", b"j", b"\x95", b"V"})
_OF_A_LINE = frozenset({b"I", b"L", b"F", b"g", b"p"})
_OF_FEW_BYTES = {b"\x80": 1, b"r": 4}
_REFUSED = {
    b"R": "calls a function",
    b"b": "sets the state of an object",
    b"o": "makes an object",
    b"\x81": "makes an object",
    b"\x92": "makes an object",
    b"\x82": "takes an object by its number in copyreg",
    b"\x83": "takes an object by its number in copyreg",
    b"\x84": "takes an object by its number in copyreg",
    b"P": "asks the program that reads it for an object",
    b"Q": "asks the program that reads it for an object",
    b"\x97": "has a part of its data elsewhere",
    b"\x98": "has a part of its data elsewhere",
    b"\x96": "has a bytearray",
    b"\x91": "has a frozen set",
    b"\x85": "has a tuple of more than numbers",
    b"\x86": "has a tuple of more than numbers",
    b"\x87": "has a tuple of more than numbers",
    b"t": "has a tuple of more than numbers",
    b"\x8b": "has a number of more than 255 bytes",
    b"I": "has a number that is too long, or none",
    b"L": "has a number that is too long, or none",
    b"F": "has a number that is too long, or none",
    b"S": "has a text of Python 2",
    b"T": "has a text of Python 2",
    b"U": "has a text of Python 2",
}
# What one byte makes of sixty and more: a file is not full of them.
_CONTAINERS = (b"}", b"]", b"\x85", b"\x86", b"\x87", b"(d", b"(l")
_SETS = b"\x8f"
_FEW = 1 << 16
_BROKEN = (
    pickle.UnpicklingError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    AttributeError,
    RecursionError,
)


class CutPickle(GpuMagicError):
    """A pickle that ends in the middle.

    Attributes:
        objects: What was read before its end, in the order in which it was begun;
            what was not finished is there as far as it goes.
    """

    def __init__(self, name: str, objects: Sequence[Any]) -> None:
        super().__init__(
            f"{name} ends in the middle", "copy it again, or write it again"
        )
        self.objects = objects


class _EndsHere(Exception):
    """The last opcode that is whole ends here."""

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def unpickled(data: bytes, name: str) -> Any:
    """The plain data of a pickle: containers of numbers, text and bytes."""
    name = printable(name, _LONGEST_NAME)
    try:
        _require_few_containers(data, name)
        _require_harmless(data, name)
        return _loaded(data, name)
    except _EndsHere as cut:
        raise CutPickle(name, _begun(data[: cut.at], name)) from None
    except MemoryError:
        raise GpuMagicError(
            f"{name} does not fit into the memory of this machine",
            "record with fewer max_entries",
        ) from None
    except _BROKEN as broken:
        raise GpuMagicError(
            f"{name} is no whole pickle: "
            f"{printable(first_line(broken), _LONGEST_NAME)}",
            "it may have been cut, or is no memory snapshot: write or copy it again",
        ) from None


class _PlainUnpickler(pickle.Unpickler):
    """Refuses all that has a name, should any of it ever come so far."""

    def __init__(self, file: Any, name: str) -> None:
        super().__init__(file)
        self._name = name

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        _refuse(self._name, f"{module_name}.{global_name}")

    def persistent_load(self, pid: Any, /) -> NoReturn:
        del pid
        _refuse(self._name, what=_REFUSED[b"P"])


def _loaded(data: bytes, name: str) -> Any:
    """What Python makes of it; what it can look at ahead, it reads at once."""
    with io.BytesIO(data) as raw, io.BufferedReader(raw, 1 << 20) as file:
        return _PlainUnpickler(file, name).load()


def _begun(data: bytes, name: str) -> Sequence[Any]:
    """What a harmless pickle has made until it was cut."""
    with (
        io.BytesIO(_with_frames_that_fit(data)) as raw,
        io.BufferedReader(raw, 1 << 20) as file,
    ):
        unpickler = _PlainUnpickler(file, name)
        with contextlib.suppress(MemoryError, *_BROKEN):
            unpickler.load()
        objects = unpickler.memo.copy()
    return [objects[number] for number in sorted(objects)]


def _with_frames_that_fit(data: bytes) -> bytes:
    """With the last frame as long as what is there of it: Python wants it whole."""
    at = 2  # behind the protocol
    while data[at : at + 1] == b"\x95":
        inside = at + 9
        end = inside + int.from_bytes(data[at + 1 : inside], "little")
        if end > len(data):
            length = max(len(data) - inside, 0).to_bytes(8, "little")
            return data[: at + 1] + length + data[inside:]
        at = end
    return data


def _require_harmless(data: bytes, name: str) -> None:
    """Go through all of its opcodes, up to the one that ends it."""
    at, put = 0, 256  # BINPUT has all numbers below
    while True:
        at = _harmless_until(data, at)
        opcode = data[at : at + 1]
        if opcode == b".":
            return
        if _is_cut(opcode, data, at):
            raise _EndsHere(at)
        if opcode in _COUNTED:
            at = _behind_counted(data, at, _COUNTED[opcode])
        elif opcode == b"\x80":
            _require_known_protocol(data[at + 1], name)
            at += 2
        elif opcode == b"r":
            _require_next(int.from_bytes(data[at + 1 : at + 5], "little"), put)
            at, put = at + 5, put + 1
        elif opcode == b"p":
            end = data.index(b"\n", at, at + 12)
            _require_next(int(data[at + 1 : end]), put)
            at, put = end + 1, put + 1
        else:
            _refuse_opcode(opcode, data, at, name)


def _harmless_until(data: bytes, at: int) -> int:
    found = _HARMLESS.match(data, at)
    return at if found is None else found.end()


def _behind_counted(data: bytes, at: int, width: int) -> int:
    begin = at + 1 + width
    end = begin + int.from_bytes(data[at + 1 : begin], "little")
    if end > len(data):  # Python would first make room for it
        raise _EndsHere(at)
    return end


def _is_cut(opcode: bytes, data: bytes, at: int) -> bool:
    """Whether the file ends within an opcode that is harmless with any argument."""
    if not opcode or opcode in _OF_ANY_BYTES:
        return True
    if opcode in _OF_A_LINE:
        return data.find(b"\n", at, at + _LONGEST_NAME) < 0 and len(data) < (
            at + _LONGEST_NAME
        )
    return opcode in _OF_FEW_BYTES and len(data) < at + 1 + _OF_FEW_BYTES[opcode]


def _require_known_protocol(number: int, name: str) -> None:
    if number > NEWEST_PROTOCOL:
        raise GpuMagicError(
            f"{name} is a pickle of protocol {number}, which is not known here",
            _way_out(name),
        )


def _require_next(number: int, most: int) -> None:
    """Python makes room for all numbers below one that is put: they come in turn."""
    if number > most:
        raise ValueError(f"its object {number} comes before those below it")


def _require_few_containers(data: bytes, name: str) -> None:
    most = len(data) + _FEW
    containers = sum(map(data.count, _CONTAINERS))
    if containers * 4 > most or data.count(_SETS) * 16 > most:
        raise GpuMagicError(
            f"{name} would fill the memory with empty containers, as no snapshot does",
            _way_out(name),
        )


def _refuse_opcode(opcode: bytes, data: bytes, at: int, name: str) -> NoReturn:
    if opcode == b"\x93":  # STACK_GLOBAL: its names are on the stack, by now or never
        _loaded(data, name)
    if opcode in {b"c", b"i"}:  # GLOBAL, INST: its names are two lines of text
        names = data[at + 1 : at + 1 + 4 * _LONGEST_NAME].split(b"\n")[:2]
        _refuse(name, ".".join(each.decode(errors="replace") for each in names))
    unknown = f"has an opcode that is not known here: 0x{opcode.hex()}"
    _refuse(name, what=_REFUSED.get(opcode, unknown))


def _refuse(name: str, called: str | None = None, *, what: str = "") -> NoReturn:
    if called is not None:
        what = f"needs {printable(called, _LONGEST_NAME)}, and reading it runs nothing"
    raise GpuMagicError(f"{name} {what}: no plain memory snapshot", _way_out(name))


def _way_out(name: str) -> str:
    """The line that makes JSON of it, to be typed where the file can be trusted."""
    plain = re.fullmatch(r"[\w.+-]+", name, re.ASCII) is not None
    file = name if plain else "FILE"
    return (
        'if you trust it, convert it where it was made: python -c "import json, pickle;'
        f" json.dump(pickle.load(open('{file}', 'rb')), open('{file}.json', 'w'),"
        ' default=str)"'
    )
