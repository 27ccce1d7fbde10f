"""Opens recordings however they are packed, and says what is in them.

What a file is, is told by its first bytes and not by its name. It is unpacked piece by
piece, so that neither a large one nor one that was made to burst fills the memory.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import re
import stat
import zipfile
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from gpumagic.errors import GpuMagicError, did_you_mean
from gpumagic.gpu_open.trace_records import FileRead
from gpumagic.report.units import bytes_text, count_text, listed, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Kind = Literal["trace", "snapshot"]
ENDINGS = (".json", ".gz", ".pickle", ".pkl", ".zip")  # of recordings
MOST_BYTES = 8 * 2**30  # a trace of 20 million events

_FIRST_READ = 2**14
_READ = 2**18
_MOST_AT_ONCE = 2**22
_HEAD = 2**20  # what stands before the events of a job with many groups of processes
_MOST_LAYERS = (
    3  # gzip in gzip is what some servers make of a file that is gzip already
)
_HARMLESS = 2**28
_MOST_RATIO = 400  # traces reach 30, and those of one event again and again 100
_MOST_SHOWN = 60  # characters of what somebody else has named

_BLANKS = b"\xef\xbb\xbf \t\r\n"  # with the mark that Windows puts before UTF-8
_GZIP = b"\x1f\x8b"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # the second is empty
_OLD_CHECKPOINT = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # before torch 1.6
_KEYS = re.compile(rb'"(traceEvents|segments|device_traces)"\s*:')
_KEYS_OF_TRACES = re.compile(
    rb'"(schemaVersion|deviceProperties|distributedInfo|displayTimeUnit)"\s*:'
)
_OF_XLA = b'"/host:CPU"'  # the process that its profiler always names
_KEYS_OF_SEGMENTS = re.compile(rb'"(segment_type|allocated_size|device_traces)"\s*:')
_PHASE = re.compile(rb'"ph"\s*:')
_ANY_KEY = re.compile(rb'"([^"\\]{1,40})"\s*:')
_TITLE = re.compile(rb"<title[^>]*>\s*([^<]*?)\s*<", re.IGNORECASE)
_ADDRESS = re.compile(r"([a-z][a-z0-9+]+):/+(.*)")  # as a path has it
_DIGITS = re.compile(r"(\d+)")

_WHAT_CAN_BE_OPENED = (
    "open what prof.export_chrome_trace('trace.json.gz') or "
    "torch.cuda.memory._dump_snapshot('snapshot.pickle') has written"
)
_AGAIN = "copy or download it again, or open the file of another rank or step"
_PERFETTO = "ui.perfetto.dev shows it; what is opened here is written by torch"
# How a file begins that is none of ours: what it is, and what to do about it.
_OTHERS = (
    (b"version https://git-lfs", "a pointer of Git LFS", "type: git lfs pull"),
    (b"/annex/objects/", "a pointer of git-annex", "type: git annex get {name}"),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", "type: zstd -d {name}"),
    (b"\xfd7zXZ\x00", "packed by xz", "type: xz -d {name}"),
    (b"BZh", "packed by bzip2", "type: bzip2 -d {name}"),
    (b"7z\xbc\xaf\x27\x1c", "packed by 7-Zip", "type: 7z x {name}"),
    (_ZIP[0], "a zip file within another", "unpack the outer one, and open the inner"),
    (_GZIP, "packed many times over", "type: gzip -d {name}"),
    (b"SQLite format 3", "a database, as Nsight Systems has", _WHAT_CAN_BE_OPENED),
    (_OLD_CHECKPOINT, "written by torch.save", _WHAT_CAN_BE_OPENED),
    (b"[[", "perhaps of export_memory_timeline", _WHAT_CAN_BE_OPENED),
)
# The same of files that are told by a word within, or by their names.
_OTHERS_WITHIN = (
    (b"MemoryViz", "a page of memory_viz", "open the snapshot that it was made from"),
    (_OF_XLA, "a trace of XLA, as JAX and TensorFlow write it", _PERFETTO),
    (b'"nbformat"', "a notebook", "open what was recorded in it: *.json.gz, *.pickle"),
    (
        b"-chakra",
        "an execution trace of torch, without times",
        "open what prof.export_chrome_trace('trace.json.gz') has written beside it",
    ),
)
_OTHERS_BY_NAME = (
    (".nsys-rep", "a report of Nsight Systems", _WHAT_CAN_BE_OPENED),
    (".qdrep", "a report of Nsight Systems", _WHAT_CAN_BE_OPENED),
    (".ncu-rep", "a report of Nsight Compute", _WHAT_CAN_BE_OPENED),
    (".pftrace", "a trace in Perfetto's own format", _PERFETTO),
    (".perfetto-trace", "a trace in Perfetto's own format", _PERFETTO),
    (".xplane.pb", "a profile of XLA, as JAX and TensorFlow write it", _PERFETTO),
    (".tfevents.", "of TensorBoard", "open the *.pt.trace.json that lies beside it"),
)


@dataclass(frozen=True)
class Opened:
    """A whole file, unpacked."""

    name: str  # without its folder
    kind: Kind  # what is in it
    data: bytes  # all that could be unpacked
    missing: str | None = None  # what could not be, in a sentence; None if it is whole


def opened(path: str | Path, *, most_bytes: int = MOST_BYTES) -> Opened:
    """Unpack a file whole."""
    with unpacking(path, most_bytes=most_bytes) as file:
        data = io.BytesIO()
        data.writelines(file)
        return Opened(file.name, file.kind, data.getvalue(), file.missing)


def kind_of(path: str | Path) -> Kind:
    """What is in a file, by its beginning."""
    with unpacking(path) as file:
        return file.kind


@contextlib.contextmanager
def unpacking(path: str | Path, *, most_bytes: int = MOST_BYTES) -> Iterator[Unpacking]:
    """Open a file that is unpacked as it is read, for as long as a block."""
    path = Path(path)
    with _open(path) as file:
        yield Unpacking(path.name, file, most_bytes)


class Unpacking:
    """A file in pieces, each at most a few MiB: it can be gone through once.

    Attributes:
        name: Without its folder.

        kind: What is in it.

        missing: What could not be unpacked, in a sentence; None if it is whole, as far
            as it has been read.
    """

    def __init__(self, name: str, file: IO[bytes], most_bytes: int) -> None:
        self.name = name
        self.missing: str | None = None
        self._shown = shortened(name, _MOST_SHOWN)
        self._file = file
        self._nbytes = os.fstat(file.fileno()).st_size
        self._most_bytes = most_bytes
        self._pieces = self._unpacked()
        self.kind = self._told()

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    @property
    def share(self) -> float:
        """How much of the file has been read, from 0 to 1."""
        return min(self._file.tell() / max(self._nbytes, 1), 1.0)

    # -------------------------------------------------------------- what is in it

    def _told(self) -> Kind:
        """The kind, from as little of the beginning as shows it."""
        head = b""
        for nbytes in (1, _HEAD):
            head, self._pieces = _with_head(self._pieces, nbytes)
            if _OF_XLA in head:
                raise self._none_of_ours(head)
            kind = _kind(head)
            if kind is not None:
                return kind
        if _begins(head) == b"{" and _KEYS_OF_TRACES.search(head):
            return "trace"
        raise self._none_of_ours(head)

    def _none_of_ours(self, head: bytes) -> GpuMagicError:
        """The error that says what it is instead, and what to do."""
        start = head.lstrip(_BLANKS)
        others = chain(
            (each for each in _OTHERS if start.startswith(each[0])),
            (each for each in _OTHERS_WITHIN if each[0] in head),
            (each for each in _OTHERS_BY_NAME if each[0] in self.name),
        )
        for _, what, hint in others:
            problem = f"{self._shown} is {what}, no recording"
            return GpuMagicError(problem, hint.format(name=self._shown))
        if not head.strip(b"\0 \t\r\n"):
            if self.missing:
                problem = f"nothing of {self._shown} could be unpacked: {self.missing}"
                return GpuMagicError(problem, _AGAIN)
            found = f"{bytes_text(len(head))} of nothing" if head else "0 bytes"
            problem = f"{self._shown} is empty: {found} were found in it"
            return GpuMagicError(problem, _AGAIN)
        if head[257:262] == b"ustar":
            hint = f"type: tar -xf {self._shown}, and open what was in it"
            return GpuMagicError(f"{self._shown} is a tar archive", hint)
        if _begins(head) == b"<":
            title = _TITLE.search(head[:4096])
            named = f' ("{_readable(title[1])}")' if title else ""
            return GpuMagicError(
                f"{self._shown} is a web page{named}, no recording",
                "log in there, and download the file itself again",
            )
        problem = f"{self._shown} is no recording: {_looks_like(start)}"
        problem += f"; {self.missing}" if self.missing else ""
        return GpuMagicError(problem, _AGAIN if self.missing else _WHAT_CAN_BE_OPENED)

    # ------------------------------------------------------------------ unpacking

    def _unpacked(self) -> Iterator[bytes]:
        """The pieces, with every layer of packing taken off."""
        pieces = self._bounded(_pieces(self._file))
        head, pieces = _with_head(pieces, len(_ZIP[0]))
        if head.startswith(_ZIP):
            pieces = self._bounded(self._unzipped())
        for _ in range(_MOST_LAYERS):
            head, pieces = _with_head(pieces, len(_GZIP))
            if not head.startswith(_GZIP):
                break
            pieces = self._bounded(self._gunzipped(pieces))
        return pieces

    def _bounded(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The same, until it is more than anybody would record."""
        nbytes = 0
        for piece in pieces:
            nbytes += len(piece)
            if nbytes > self._most_bytes:
                raise GpuMagicError(
                    f"{self._shown} is larger than {bytes_text(self._most_bytes)}, "
                    "unpacked",
                    "record fewer steps: torch.profiler.schedule(wait=1, warmup=1, "
                    "active=3)",
                )
            if nbytes > max(_HARMLESS, _MOST_RATIO * self._nbytes):
                raise GpuMagicError(
                    f"{self._shown} unpacks to more than {_MOST_RATIO} times its "
                    f"{bytes_text(self._nbytes)}, which no recording does",
                    "open a recording from somebody whom you trust",
                )
            yield piece

    def _gunzipped(self, packed: Iterable[bytes]) -> Iterator[bytes]:
        """What gzip has packed, member by member, as far as it goes."""
        member = zlib.decompressobj(wbits=31)
        for piece in packed:
            rest = piece
            while rest:
                if member.eof:
                    rest = rest.lstrip(b"\0")  # tapes are filled up with zeros
                    if rest[:1] != _GZIP[:1]:
                        break
                    member = zlib.decompressobj(wbits=31)
                before = member.copy()
                try:
                    data = member.decompress(rest, _MOST_AT_ONCE)
                except zlib.error:
                    yield from _up_to_the_fault(before, rest)
                    self.missing = "the packed data is damaged: what follows is missing"
                    return
                if data:
                    yield data
                rest = member.unused_data if member.eof else member.unconsumed_tail
        while data := member.decompress(b"", _MOST_AT_ONCE):
            yield data
        if not member.eof:
            self.missing = (
                "the packed file ends too early: what came after it is missing"
            )

    def _unzipped(self) -> Iterator[bytes]:
        """The one file that a zip file holds."""
        try:
            archive = zipfile.ZipFile(self._file)
            names = archive.infolist()
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise GpuMagicError(
                f"{self._shown} is a zip file without its end, where its names stand",
                _AGAIN,
            ) from error
        member = self._only(names)
        try:
            packed = archive.open(member)
        except (RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
            raise self._needs_unzip() from error
        if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise self._needs_unzip()
        while True:
            try:
                piece = packed.read(_READ)
            except (zipfile.BadZipFile, zlib.error, EOFError):
                self.missing = "the packed data is damaged: what follows is missing"
                return
            if not piece:
                return
            yield piece

    def _needs_unzip(self) -> GpuMagicError:
        return GpuMagicError(
            f"{self._shown} is a zip file that needs a password or another program",
            f"type: unzip {self._shown}, and open what was in it",
        )

    def _only(self, names: Iterable[zipfile.ZipInfo]) -> zipfile.ZipInfo:
        # Macs put a file of their own beside each, and some programs the folders.
        members = [
            each
            for each in names
            if not each.is_dir() and not each.filename.startswith("__MACOSX/")
        ]
        if any(each.filename.endswith("/data.pkl") for each in members):
            raise GpuMagicError(
                f"{self._shown} was written by torch.save: it is no recording",
                _WHAT_CAN_BE_OPENED,
            )
        if len(members) == 1:
            return members[0]
        shown = [printable(each.filename, _MOST_SHOWN) for each in members]
        inside = listed(shown, most=3)
        raise GpuMagicError(
            f"{self._shown} is a zip file of {count_text(len(members), 'file')}"
            f"{': ' if members else ''}{inside}",
            f"type: unzip {self._shown}, and open what was in it",
        )


def _kind(head: bytes) -> Kind | None:
    """What begins like this; None where it does not show."""
    if head.startswith(_OLD_CHECKPOINT):
        return None
    if head[:1] == b"\x80" and head[1:2] in {b"\2", b"\3", b"\4", b"\5"}:
        return "snapshot"
    start = _begins(head)
    if start == b"{":
        key = _KEYS.search(head)
        if key is not None:
            return "trace" if key[1] == b"traceEvents" else "snapshot"
    if start == b"[":
        if _KEYS_OF_SEGMENTS.search(head):
            return "snapshot"
        if _PHASE.search(head):
            return "trace"
    return None


def _begins(head: bytes) -> bytes:
    """The first character that says something."""
    return head.lstrip(_BLANKS)[:1]


def _looks_like(start: bytes) -> str:
    """What a file begins with, in words."""
    keys = [_readable(each) for each in dict.fromkeys(_ANY_KEY.findall(start[:4096]))]
    if start[:1] in {b"{", b"["} and keys:
        return f"it is JSON with {listed(keys, most=3)}"
    return f"it begins with {_readable(start[:20])!r}"


def _readable(raw: bytes) -> str:
    """Bytes of a file as a few characters that do no harm."""
    return printable(raw.decode("utf-8", "replace"), _MOST_SHOWN)


# ------------------------------------------------------------------------- pieces


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """A small one first: it often tells what the file is."""
    yield file.read(_FIRST_READ)
    while piece := file.read(_READ):
        yield piece


def _with_head(pieces: Iterator[bytes], nbytes: int) -> tuple[bytes, Iterator[bytes]]:
    """So many bytes at least, if there are, and all the pieces again."""
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= nbytes:
            break
    return head, chain([head], pieces)


def _up_to_the_fault(member: zlib._Decompress, packed: bytes) -> Iterator[bytes]:
    """What damaged data gives before it does not go on, byte by byte."""
    for at in range(len(packed)):
        try:
            data = member.decompress(packed[at : at + 1])
        except zlib.error:
            return
        if data:
            yield data


# -------------------------------------------------------------------------- finding


@dataclass
class Found:
    """What is meant by names."""

    files: list[Path]  # those that are to be opened
    # what lies in a folder beside them, is named as recordings are, and cannot be
    # opened with them
    left_out: list[FileRead]


def found(names: Iterable[str | Path]) -> Found:
    """The files that are meant: of a pattern all it fits, of a folder the recordings.

    Those of one folder or pattern are in the order of the numbers in their names; files
    that are named are not looked at.
    """
    files: dict[Path, None] = {}
    left_out: dict[Path, FileRead] = {}
    for name in names:
        path = _path(name)
        if path.is_dir():
            inside, others = _recordings_in(path)
            left_out.update(others)
        elif glob.has_magic(str(path)) and not path.exists():
            inside = _fitting(path)
        else:
            inside = [path]
        files.update(dict.fromkeys(inside))
    return Found(
        list(files), [told for path, told in left_out.items() if path not in files]
    )


def _path(name: str | Path) -> Path:
    """Where a name leads; none that no file can have, or that may not be looked at."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 -- nobody's ~ stays as it is
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return path  # perhaps a pattern
    except (OSError, ValueError) as error:
        raise _unopened(path, error) from error
    return path


def _fitting(pattern: Path) -> list[Path]:
    fitting = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 - any folder
    paths = [Path(name) for name in fitting]
    files = sorted((path for path in paths if not path.is_dir()), key=_by_numbers)
    if not files:
        raise GpuMagicError(
            f"no file fits {shortened(str(pattern), _MOST_SHOWN)}",
            f"type: %ls {shortened(str(pattern.parent), _MOST_SHOWN)}",
        )
    return files


def _recordings_in(folder: Path) -> tuple[list[Path], dict[Path, FileRead]]:
    """Its traces, or its snapshots where it has none; and what is left out, and why."""
    inside = [path for path in _listed(folder) if path.name[0] != "."]
    files = sorted((path for path in inside if path.is_file()), key=_by_numbers)
    kinds: dict[Kind, list[Path]] = {"trace": [], "snapshot": []}
    left_out: dict[Path, FileRead] = {}
    for path in files:
        try:
            kinds[kind_of(path)].append(path)
        except GpuMagicError as error:
            if path.name.endswith(ENDINGS):
                left_out[path] = FileRead(path.name, 0, 0, error.problem)
    if kinds["trace"]:
        for path in kinds["snapshot"]:
            why = f"{shortened(path.name, _MOST_SHOWN)} is a memory snapshot, no trace"
            left_out[path] = FileRead(path.name, 0, 0, why)
        return kinds["trace"], left_out
    if kinds["snapshot"]:
        return kinds["snapshot"], left_out
    shown = shortened(str(folder), _MOST_SHOWN)
    folders = [path.name for path in inside if path.is_dir()]
    among = f"{count_text(len(files), 'file')} and {count_text(len(folders), 'folder')}"
    hint = "name a file, or the folder with the traces"
    if folders:
        example = folder / min(folders)
        hint = f"name a folder within it, such as {shortened(str(example), 200)}"
    elif left_out:
        hint = f"the first of them: {next(iter(left_out.values())).missing}"
    raise GpuMagicError(f"there is no recording in {shown}: {among} are there", hint)


def _by_numbers(path: Path) -> list[tuple[int, str]]:
    """Rank 2 comes before rank 10."""
    parts = _DIGITS.split(str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise _unopened(folder, error) from error


def _open(path: Path) -> IO[bytes]:
    """A file of the disk; what is none, such as a pipe, might never end."""
    try:
        if path.is_dir():
            raise GpuMagicError(
                f"{shortened(str(path), _MOST_SHOWN)} is a folder, no file",
                "name a file in it",
            )
        if not stat.S_ISREG(path.stat().st_mode):
            raise GpuMagicError(
                f"{shortened(str(path), _MOST_SHOWN)} is no file, but a pipe or device",
                "write it to a file, and open that",
            )
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise _unopened(path, error) from error


def _unopened(path: Path, error: Exception) -> GpuMagicError:
    shown = printable(str(path), 200)
    if address := _ADDRESS.fullmatch(str(path)):
        url = shortened(f"{address[1]}://{address[2]}", 200)
        return GpuMagicError(f"{url} is no file of this machine", "download it first")
    if isinstance(error, FileNotFoundError):
        if not path.parent.is_dir():
            return GpuMagicError(
                f"there is no folder {shortened(str(path.parent), 200)}",
                f"the current one is {Path.cwd()}; type: %ls",
            )
        near = did_you_mean(path.name, (each.name for each in _listed(path.parent)))
        hint = near or f"type: %ls {path.parent}"
        return GpuMagicError(f"there is no file {shown}", hint)
    if isinstance(error, PermissionError):
        hint = f"type: !ls -l {shown}, and ask its owner for the right to read it"
        return GpuMagicError(f"{shown} may not be read by you", hint)
    why = getattr(error, "strerror", None) or error  # without the name once more
    return GpuMagicError(f"{shown} cannot be read: {why}", "copy it to another place")
