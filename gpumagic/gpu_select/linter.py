"""Judges the variables as they are set: what is wrong, or only surprising."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from gpumagic.devices.visibility import usable
from gpumagic.errors import did_you_mean
from gpumagic.gpu_select.history import export_that_is_lost, quotes_that_are_kept
from gpumagic.gpu_select.machine import places
from gpumagic.gpu_select.report import Remark, Severity
from gpumagic.gpu_select.variables import MPS, ORDER, VISIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gpumagic.devices.protocols import Inventory
    from gpumagic.devices.visibility import Visible
    from gpumagic.gpu_select.report import Variable

_ORDERS = ("PCI_BUS_ID", "FASTEST_FIRST")
_JOB = "SLURM_JOB_ID"
_BY_NAME = ("GPU-", "MIG-")
_MANY_GPUS = 64  # where it is not known how many there are
_MOST_SHOWN = 80  # letters of a value that are quoted
_QUOTES = "\"'`\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
_BETWEEN = re.compile(rf"[\s,;{_QUOTES}()\[\]{{}}]+")
_NUMBER = re.compile(r"(?:cuda:|gpu)?([0-9]{1,6})", re.IGNORECASE)
_RANGE = re.compile(r"\s*([0-9]{1,18})\s*(?:-|\.\.)\s*([0-9]{1,18})\s*")
_HIDDEN_ON_PURPOSE = re.compile(r"\s*-[0-9]+\s*")
_NO_DEVICE_FILES = "nodevfiles"  # what Slurm writes for a job that was given no GPU
_WORDS_FOR_NONE = frozenset({"none", "no", "void", "null", "nil", "off", "false"})
# How the parser of the list begins or ends what it says of an entry.
_ENDS = "the list ends at "
_AGAIN = " names a GPU again, which hides every GPU"
_OVERLOOKED = "what follows the number is overlooked"
_ABOUT_ENTRIES = (_ENDS, _AGAIN, _OVERLOOKED)
_ABOUT_SLICES = ("is in MIG mode", "slices and whole GPUs", "MIG slice")
_BY_SPEED = "the fastest may come first"
_SAID_ELSEWHERE = ("there is no GPU", "an empty value hides every GPU")
_BETWEEN_WORDS = re.compile(r"[^A-Z0-9]+")
_LIKE_A_WORD = 0.7  # CUDA and CDUA, DEVICES and DEVICE
_LIKE_THE_WHOLE = 0.7  # all of the words, in another order or with one missing
_RUN_TOGETHER = 0.92  # without what separates the words


def remarks(  # noqa: PLR0913, PLR0917 -- all that a setting consists of
    environment: Mapping[str, str],
    variable: Variable,
    order: Variable,
    inventory: Inventory,
    history: Iterable[tuple[int, str]],
    visible: Visible,
) -> tuple[Remark, ...]:
    """What the user should know about the setting; nothing if it is sound."""
    value = in_force(variable)
    cells = tuple(history)
    quoting_cell = quotes_that_are_kept(cells) if value else None
    return (
        *_value_remarks(value, inventory, visible, quoting_cell),
        *_differing(variable, inventory),
        *_differing(order, inventory),
        *_order(in_force(order)),
        *_misnamed(environment, inventory),
        *_lost_export(variable, cells, inventory),
        *(_renumbered(environment, value, inventory) if visible.physical else ()),
        *_given(environment, variable),
    )


def in_force(variable: Variable) -> str | None:
    """The value that the driver reads, which is C's where that is known."""
    return variable.c if variable.c_known else variable.python


def _differing(variable: Variable, inventory: Inventory) -> Iterator[Remark]:
    if not variable.c_known or variable.python == variable.c:
        return
    choice = instead(variable.c or variable.python or "", inventory, default="all")
    yield Remark(
        Severity.WARNING,
        f"{variable.name} is {_said(variable.python)} to Python and "
        f"{_said(variable.c)} to C, which is what CUDA reads: os.putenv or a library "
        "has changed it for C alone",
        f"type {choice}, which sets both",
    )


def _order(value: str | None) -> Iterator[Remark]:
    if value is None or value in _ORDERS:
        return
    near = did_you_mean(value.strip(" \"'").upper(), _ORDERS)
    yield Remark(
        Severity.WARNING,
        f"{ORDER} is {_quoted(value)}, which is none of the two words that CUDA knows: "
        f"it goes by {_ORDERS[1]}{f' ({near})' if near else ''}",
        f"choose with %gpu_select, which sets it to {_ORDERS[0]} as well",
    )


def _misnamed(environment: Mapping[str, str], inventory: Inventory) -> Iterator[Remark]:
    for name in sorted(meant_to_be(VISIBLE, environment)):
        yield Remark(
            Severity.WARNING,
            f"the environment has {_quoted(name)}, which CUDA does not read: the "
            f"variable is called {VISIBLE}",
            f"type {instead(environment[name], inventory)}",
        )


def _lost_export(
    variable: Variable, cells: Iterable[tuple[int, str]], inventory: Inventory
) -> Iterator[Remark]:
    # Whoever has set it since, by whatever means, has found out.
    if variable.python != variable.at_start:
        return
    lost = export_that_is_lost(cells)
    if lost is None or lost.value == variable.python:
        return
    yield Remark(
        Severity.WARNING,
        f"In[{lost.cell}] sets {VISIBLE}={lost.value} in a shell of its own, which was "
        "gone at the end of the command: this process has not changed",
        f"type {instead(lost.value, inventory)}",
    )


def _renumbered(
    environment: Mapping[str, str], value: str | None, inventory: Inventory
) -> Iterator[Remark]:
    folder = environment.get(MPS)
    if folder is None or (value or "").strip().startswith(_BY_NAME):
        return
    yield Remark(
        Severity.NOTE if value is None else Severity.WARNING,
        f"{MPS} is {_quoted(folder)}: where the MPS daemon runs, it "
        "numbers GPUs on its own, and numbers may mean others",
        f"type {instead(value or '', inventory, default='all')} --as uuid",
    )


def _given(environment: Mapping[str, str], variable: Variable) -> Iterator[Remark]:
    """That the process has inherited a list, which limits what can be chosen."""
    given = variable.at_start
    if given is None or not any(letter.isdigit() for letter in given):
        return
    job = environment.get(_JOB)
    giver = (
        f"by Slurm (job {job})"
        if job
        else "by its kernel.json or whatever has started Jupyter"
    )
    yield Remark(
        Severity.NOTE,
        f"this process was started with {VISIBLE}={given}, {giver}: that is what there "
        "is to choose from",
        "add --force to a choice to go beyond it",
    )


def _said(value: str | None) -> str:
    return "not set" if value is None else _quoted(value)


# ---------------------------------------------------------------- the value


def _value_remarks(
    value: str | None,
    inventory: Inventory,
    visible: Visible,
    quoting_cell: int | None = None,
) -> Iterator[Remark]:
    """What to know about a value.

    `quoting_cell` is the one in which %env has kept quotes, if one has.
    """
    mistake = None if value is None else _mistake(value, inventory, quoting_cell)
    if mistake is not None:
        yield mistake
    on_purpose = value is not None and _HIDDEN_ON_PURPOSE.fullmatch(value)
    for reason in visible.reasons:
        about_entries = any(words in reason for words in _ABOUT_ENTRIES)
        said = reason in _SAID_ELSEWHERE or (about_entries and mistake is not None)
        if not said and not on_purpose:
            yield _explained(reason, value, inventory, visible)


def instead(value: str, inventory: Inventory, default: str = "") -> str:
    """The choice to type that comes nearest to a value.

    The default stands in for a value that names nothing that is there.
    """
    names = list[str]()
    for word in _BETWEEN.split(value):
        names += [name for name in _names(word, inventory) if name not in names]
    return f"%gpu_select {','.join(names) or default}".strip()


def _quoted(value: str) -> str:
    """A value in quotation marks, cut where it would fill the screen."""
    cut = len(value) > _MOST_SHOWN
    return repr(value[:_MOST_SHOWN] + "..." if cut else value)


# ---------------------------------------------------------------- mistakes


def _mistake(
    value: str, inventory: Inventory, quoting_cell: int | None
) -> Remark | None:
    """What the whole value is an example of, if of anything."""
    is_quoted = any(quote in value for quote in _QUOTES)
    is_range = any(_RANGE.fullmatch(entry) for entry in value.split(","))
    word = value.strip().casefold()
    if not word:
        return _empty(value)
    if is_quoted:
        return _with_quotes(value, inventory, quoting_cell)
    if is_range:
        return _with_range(value, inventory)
    if word == _NO_DEVICE_FILES:
        return _no_device_files(value)
    if word == "all":
        return _the_word_all(value)
    return _word_for_none(value) if word in _WORDS_FOR_NONE else None


def _empty(value: str) -> Remark:
    return Remark(
        Severity.WARNING,
        f"{VISIBLE} is {_quoted(value)}: this hides every GPU from CUDA, and to some "
        "libraries it is the same as not set",
        "type %gpu_select none, which writes -1, or %gpu_select all",
    )


def _with_quotes(value: str, inventory: Inventory, quoting_cell: int | None) -> Remark:
    by = "" if quoting_cell is None else f" by %env in In[{quoting_cell}]"
    return Remark(
        Severity.PROBLEM,
        f"{VISIBLE} was set to {_quoted(value)}{by}: the quotation marks are part of "
        "the value, and CUDA reads no further than to the first of them",
        f"type {instead(value, inventory)}",
    )


def _with_range(value: str, inventory: Inventory) -> Remark:
    return Remark(
        Severity.PROBLEM,
        f"{VISIBLE} is {_quoted(value)}: CUDA knows no ranges, and reads the first "
        "number of one alone",
        f"type {instead(value, inventory)}",
    )


def _no_device_files(value: str) -> Remark:
    return Remark(
        Severity.PROBLEM,
        f"{VISIBLE} is {_quoted(value)}, which Slurm writes for a job without GPUs: it "
        "hides every GPU",
        "ask for one when you start the job: --gres=gpu:1, or --gpus=1",
    )


def _the_word_all(value: str) -> Remark:
    return Remark(
        Severity.PROBLEM,
        f"{VISIBLE} is {_quoted(value)}: CUDA knows no such word, and hides every GPU",
        "type %gpu_select all",
    )


def _word_for_none(value: str) -> Remark:
    return Remark(
        Severity.WARNING,
        f"{VISIBLE} is {_quoted(value)}: CUDA knows no such word, and hides every GPU "
        "as it would for any other",
        "type %gpu_select none, which writes -1, or %gpu_select all",
    )


# ---------------------------------------------------------------- the parse


def _explained(
    reason: str, value: str | None, inventory: Inventory, visible: Visible
) -> Remark:
    """What the parser of the list has said, and what to do about it."""
    if any(words in reason for words in _ABOUT_ENTRIES):
        choice = instead(value or "", inventory)
        return Remark(
            Severity.WARNING if visible.physical else Severity.PROBLEM,
            f"{VISIBLE} is {_quoted(value or '')}; {reason}",
            f"type {choice}{'' if ' ' in choice else ' to see what can be chosen'}",
        )
    if any(words in reason for words in _ABOUT_SLICES):
        hint = "type %gpu_select for the names of slices, and choose one by its name"
        return Remark(Severity.NOTE, reason, hint)
    if _BY_SPEED in reason:
        hint = "choose with %gpu_select, which sets CUDA_DEVICE_ORDER=PCI_BUS_ID"
        kind = Severity.NOTE if value is None else Severity.WARNING
        return Remark(kind, f"the models differ, and {reason}", hint)
    choice = instead(value or "", inventory, default="all")
    return Remark(Severity.NOTE, reason, f"type {choice}, which drivers read alike")


# ---------------------------------------------------------------- what was meant


def _names(word: str, inventory: Inventory) -> list[str]:
    """The names of a choice that a word stands for; none that are not there."""
    if match := _RANGE.fullmatch(word):
        first, last = int(match[1]), int(match[2])
        numbers = range(first, min(last + 1, len(inventory.gpus) or _MANY_GPUS))
        return [name for each in numbers for name in _numbered(each, inventory)]
    if match := _NUMBER.fullmatch(word):
        return _numbered(int(match[1]), inventory)
    known = [uuid for place in places(inventory) if (uuid := place.uuid)]
    fitting = [uuid for uuid in known if word and uuid.startswith(word)]
    return fitting if len(fitting) == 1 else []


def _numbered(number: int, inventory: Inventory) -> list[str]:
    """CUDA's number as nvidia-smi's; as it is where no GPU is known."""
    if not inventory.gpus:
        return [str(number)]
    gpus = usable(inventory)
    return [str(gpus[number].index)] if number < len(gpus) else []


# ---------------------------------------------------------------- names that are slips


def meant_to_be(name: str, there: Iterable[str]) -> list[str]:
    """Those of the names that look like slips of the pen.

    Names that other programs read are none: they begin with a maker's or a tool's
    word in the place of the first, or say all of the words and one more.

    >>> meant_to_be("CUDA_VISIBLE_DEVICES", ["CUDA_VISIBLE", "HIP_VISIBLE_DEVICES"])
    ['CUDA_VISIBLE']
    """
    return [each for each in there if each != name and _is_slip(each, name)]


def _is_slip(found: str, meant: str) -> bool:
    words, wanted = _words(found), _words(meant)
    if set(words) > set(wanted):
        return False
    if _alike("".join(words), "".join(wanted)) >= _RUN_TOGETHER:
        return True
    begun = all(_has(each, words) for each in wanted[:2])
    return begun and _alike("_".join(words), "_".join(wanted)) >= _LIKE_THE_WHOLE


def _words(name: str) -> list[str]:
    return [word for word in _BETWEEN_WORDS.split(name.upper()) if word]


def _has(wanted: str, words: list[str]) -> bool:
    return any(_alike(word, wanted) >= _LIKE_A_WORD for word in words)


def _alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
