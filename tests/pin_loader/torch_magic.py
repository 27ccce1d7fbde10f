"""`%pin_loader` in a shell, on the simulated GPU: what each line comes to."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from gpumagic.devices.accelerator import Busy
from gpumagic.devices.opening import open_runtime
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader import DevicePrefetcher, load, workers
from gpumagic.pin_loader.answer_loader import LoaderReport
from gpumagic.pin_loader.answer_watch import WatchReport
from gpumagic.pin_loader.records import (
    Limit,
    LimitKind,
    Remedy,
    Severity,
    State,
)
from tests.pin_loader.clocks import paced
from tests.report.test_introspection import Refusing

BUDGET = "--budget 2s"
SHAPE = (3, 64, 64)


@pytest.fixture(autouse=True)
def clock(unhurried):
    """A busy machine comes to the same end, however late."""
    return unhurried


def images(count=256):
    """Pictures with their numbers."""
    return TensorDataset(pictures(count), torch.arange(count))


@functools.cache
def pictures(count):
    """The same for all tests, which only read them."""
    return torch.rand(count, *SHAPE)


@pytest.fixture
def shell(box):
    """A shell with the extension loaded and some loaders."""
    from IPython.core.async_helpers import get_asyncio_loop
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()  # the one whose cells have numbers
    shell.run_line_magic("load_ext", "gpumagic")
    shell.user_ns.update(
        torch=torch,
        train_dl=DataLoader(images(), 64, shuffle=True),
    )
    yield shell
    shell.run_line_magic("unload_ext", "gpumagic")
    shell.reset(new_session=False)
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()
    get_asyncio_loop().close()
    gc.collect()


def run(shell, text):
    """Run a cell as a user does; raises what it raises."""
    done = shell.run_cell(text, store_history=True)
    done.raise_error()
    return done.result


# ------------------------------------------------------------------- how it ends


def test_a_loader_that_holds_the_gpu_up_is_fixed(shell):
    """The new loader gives the same batches on the device; the old one is untouched."""
    before = dict(vars(shell.user_ns["train_dl"]))

    report = run(shell, f"%pin_loader train_dl {BUDGET} -o -q --force")

    fed = shell.user_ns["train_dl_pinned"]
    assert isinstance(report, LoaderReport)
    assert (report.state, report.out) == (State.FASTER, "train_dl_pinned")
    assert report.setting.label
    assert report.sameness.same
    assert report.end_to_end is not None
    assert isinstance(fed, DevicePrefetcher)
    assert [x.device.type for x, _ in fed] == ["sim"] * 4
    assert dict(vars(shell.user_ns["train_dl"])) == before


def test_nothing_to_win_is_an_answer(shell):
    """Where the step itself takes the time, nothing is made."""
    busy = Busy(open_runtime("sim"), 0, name="a long step")
    shell.user_ns["step"] = lambda batch: busy.submit(0.1)

    report = run(shell, f"%pin_loader train_dl --step step {BUDGET} -o -q")

    assert report.state is State.NOTHING
    assert report.out is None
    assert "train_dl_pinned" not in shell.user_ns
    assert report.bound.best is None
    assert not report.rates.step.synthetic


@pytest.mark.parametrize("all_of_it", [True, False])
def test_only_batches_that_are_on_the_device_already_are_refused(shell, all_of_it):
    """A part of one that lies there is no reason; all of it is."""
    made = torch.arange(64.0)

    def collate(rows):
        there = torch.ones(len(rows), device="sim")
        return there if all_of_it else (there, made[: len(rows)])

    shell.user_ns["there_dl"] = DataLoader(range(64), 8, collate_fn=collate)

    report = run(shell, f"%pin_loader there_dl {BUDGET} -o -q --diagnose")

    assert (report.state is State.REFUSED) is all_of_it


def test_too_little_memory_is_refused(shell, monkeypatch):
    """A limit that says no ends it, with what to type."""
    refuse_by(monkeypatch, LimitKind.AVAILABLE)

    report = run(shell, f"%pin_loader train_dl {BUDGET} -o -q")

    assert report.state is State.REFUSED
    assert report.reason.hint


def refuse_by(monkeypatch, kind):
    """Let the guard find that something has run out."""
    from gpumagic.pin_loader import stages
    from gpumagic.pin_loader.records import Guard

    limit = Limit(kind, 100, 10, Severity.REFUSE, "use less")
    guard = Guard((limit,))
    monkeypatch.setattr(stages.limits, "guard", lambda *_, **__: guard)


# ------------------------------------------------------------------ what is found


def test_diagnosis_makes_nothing_and_starts_no_device(shell):
    """--diagnose looks at the batch and at loading only, as long as nothing runs."""
    state = torch.get_rng_state()

    report = run(shell, f"%pin_loader train_dl --diagnose {BUDGET} -o -q")

    assert report.state is State.DIAGNOSED
    assert report.rates.load is not None
    assert not torch.sim.is_initialized()
    assert torch.equal(torch.get_rng_state(), state)
    assert "train_dl_pinned" not in shell.user_ns


@pytest.fixture
def takes_16_ms(clock, monkeypatch):
    """Each worker takes so long for a batch, all of which is waiting."""
    monkeypatch.setattr(load.trial, "batches_of", paced(clock, batch_s=0.016))
    monkeypatch.setattr(workers, "MOST", 4)
    monkeypatch.setattr(workers, "busy_workers", lambda *_: 4)


@pytest.mark.usefixtures("takes_16_ms")
def test_workers_that_pay_are_found_and_taken(shell):
    """Loading that waits is faster with workers, and the stand-in gets shorter."""
    shell.user_ns["slow_dl"] = DataLoader(TensorDataset(torch.rand(4096, 4)), 8)

    report = run(shell, "%pin_loader slow_dl --workers auto --budget 60s -o -q")

    assert report.workers.chosen == 4
    assert report.state is State.FASTER
    assert shell.user_ns["slow_dl_pinned"].num_workers == 4
    measured = 1 / report.end_to_end.result.ratio
    assert measured > 3
    assert measured <= report.bound.gain(Remedy.EVERYTHING).times * (1 + 1e-9)


# ---------------------------------------------------------------------- watching


def test_a_training_cell_is_watched(shell):
    """Its copies are told by line, and its own value comes back."""
    report = run(
        shell,
        "%%pin_loader --watch -o -q\n"
        "for x, y in train_dl:\n"
        "    z = x.to('sim')\n"
        "41 + 1",
    )

    (line,) = report.copies
    assert isinstance(report, WatchReport)
    assert line.line.source == "z = x.to('sim')"
    assert (line.times, line.nbytes) == (4, 256 * 3 * 64 * 64 * 4)
    assert line.pageable_bytes == line.nbytes
    assert [wait.loader for wait in report.waits] == ["train_dl"]


# -------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "needs the name of a DataLoader"),
        ("trian_dl", "there is no trian_dl"),
        ("odd.loader", "odd.loader: RuntimeError: loader"),
        ("train_dl[0]", "is an expression"),
        ("train_dl --step nothing", "--step nothing: there is no such name"),
        ("train_dl --step torch", "this is a module, no function"),
        ("train_dl --device sim:7 --budget 1s", "sim:7"),
        ("train_dl --step two", "does not take one argument"),
        ("--watch", "needs a training cell below it"),
    ],
)
def test_a_wrong_word_is_one_clear_error(shell, line, said):
    """What was found, what to type; and nothing is changed."""
    shell.user_ns["two"] = lambda x, y: x + y
    shell.user_ns["odd"] = Refusing()
    names = set(shell.user_ns)

    with pytest.raises(GpuMagicError) as caught:
        shell.run_line_magic("pin_loader", line)

    assert said in caught.value.problem
    assert caught.value.hint
    assert {name for name in set(shell.user_ns) - names if "pinned" in name} == set()
