"""`%pin_loader` on the simulated GPU: each line in a shell, and what is left after."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import gpumagic
from gpumagic.devices.accelerator import Busy
from gpumagic.devices.opening import open_runtime
from gpumagic.errors import GpuMagicError
from gpumagic.pin_loader import DevicePrefetcher, anatomy, diagnose, improve, load
from gpumagic.pin_loader.answer_loader import LoaderReport
from gpumagic.pin_loader.answer_watch import WatchReport
from gpumagic.pin_loader.feed import measure_feed
from gpumagic.pin_loader.records import WORTH_IT, Loading, Remedy, Samples, State
from gpumagic.pin_loader.trial import kept
from tests.pin_loader.kinds import Stream

BUDGET = "--budget 2s"
IMAGES = TensorDataset(torch.rand(256, 3, 64, 64), torch.arange(256))


@pytest.fixture(autouse=True)
def clock(unhurried):
    """A busy machine comes to the same end, however late."""
    return unhurried


@pytest.fixture
def shell(box):
    """A shell with the extension loaded and some loaders."""
    from IPython.core.async_helpers import get_asyncio_loop
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()  # the one whose cells have numbers
    shell.run_line_magic("load_ext", "gpumagic")
    shell.user_ns.update(
        torch=torch,
        train_dl=DataLoader(IMAGES, 64, shuffle=True),
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


def test_a_loader_that_holds_the_gpu_up_is_fixed(shell):
    """The new loader gives the same batches on the device; the old one is untouched."""
    before = dict(vars(shell.user_ns["train_dl"]))

    report = run(shell, f"%pin_loader train_dl {BUDGET} -o -q --force")

    fed = shell.user_ns["train_dl_pinned"]
    assert isinstance(report, LoaderReport)
    assert (report.state, report.out) == (State.FASTER, "train_dl_pinned")
    assert report.label
    assert report.sameness.same
    assert report.end_to_end
    assert isinstance(fed, DevicePrefetcher)
    assert [x.device.type for x, _ in fed] == ["sim"] * 4
    assert dict(vars(shell.user_ns["train_dl"])) == before


def test_nothing_to_win_is_an_answer(shell):
    """Where the step itself takes the time, nothing is made."""
    busy = Busy(open_runtime("sim"), 0, name="a long step")
    shell.user_ns["step"] = lambda batch: busy.submit(0.1)

    report = run(shell, f"%pin_loader train_dl --step step {BUDGET} -o -q")

    assert report.state is State.NOTHING
    assert report.out == ""
    assert "train_dl_pinned" not in shell.user_ns
    assert report.bound.times(*Remedy) < WORTH_IT
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
    monkeypatch.setattr(anatomy, "look_at_room", lambda: {anatomy.Memory.AVAILABLE: 10})

    report = run(shell, f"%pin_loader train_dl {BUDGET} -o -q")

    assert report.state is State.REFUSED
    assert "of the memory of the machine, and 10 B are left" in report.headline
    assert report.reason.hint


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


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "needs the name of a DataLoader"),
        ("trian_dl", "there is no trian_dl"),
        ("model.loader", "is an expression"),
        ("train_dl[0]", "is an expression"),
        ("train_dl --step nothing", "there is no nothing"),
        ("train_dl --step torch", "--step torch: this is no function"),
        ("train_dl --workers many", "--workers many is no number"),
        ("train_dl --workers -1", "--workers -1 is no number of workers"),
        ("train_dl --budget 0s", "a budget of no time"),
        ("train_dl --device sim:7 --budget 1s", "sim:7"),
        ("train_dl --step two", "does not take one argument"),
        ("--watch", "needs a training cell below it"),
    ],
)
def test_a_wrong_word_is_one_clear_error(shell, line, said):
    """What was found, what to type; and nothing is changed."""
    shell.user_ns["two"] = lambda x, y: x + y
    names = set(shell.user_ns)

    with pytest.raises(GpuMagicError) as caught:
        shell.run_line_magic("pin_loader", line)

    assert said in caught.value.problem
    assert caught.value.hint
    assert {name for name in set(shell.user_ns) - names if "pinned" in name} == set()


@pytest.mark.parametrize("option", ["", "--watch --workers 2", "--watch --force"])
def test_in_front_of_a_cell_it_only_watches(shell, option):
    """An option that changes a loader would be ignored there, and is refused."""
    with pytest.raises(GpuMagicError, match="only watches, and takes no other option"):
        shell.run_cell_magic("pin_loader", option, "41 + 1")


@pytest.mark.usefixtures("box")
def test_memory_of_the_device_is_given_back():
    """What was taken for batches, loops and buffers goes back when all has ended."""
    mine = torch.zeros(1 << 20, device="sim")
    before = torch.sim.memory_reserved(), torch.sim.memory_allocated()

    made = improve(DataLoader(IMAGES, 64), name="dl", budget_s=30.0, force=True)

    assert made.report.end_to_end
    assert (torch.sim.memory_reserved(), torch.sim.memory_allocated()) == before
    assert mine.device.type == "sim"


@pytest.mark.usefixtures("box")
def test_a_loader_without_a_length_is_improved():
    """Nothing asks the new one how long it is: that raises."""
    made = improve(DataLoader(Stream(400), 16), out="new", budget_s=2.0, force=True)

    assert made.report.out == "new"
    assert sum(len(batch) for batch in made.loader) == 400


@pytest.fixture
def pinned_under(monkeypatch):
    """Two simulated GPUs; the devices that were current when something was pinned."""
    found = set()
    real = torch.Tensor.pin_memory

    def noting(tensor, *args):
        found.add(torch.sim.current_device())
        return real(tensor, *args)

    monkeypatch.setattr(torch.Tensor, "pin_memory", noting)
    with gpumagic.simulate("2xh100"):
        yield found


SMALL = TensorDataset(torch.rand(128, 3, 16, 16))


@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("started", [True, False])
def test_improving_pins_under_the_device_that_is_asked_for(
    pinned_under, pin_memory, started
):
    """The current device is another one, started or not, and is so again at the end."""
    if started:
        torch.zeros(1, device="sim:0")

    made = improve(
        DataLoader(SMALL, 16, pin_memory=pin_memory),
        device="sim:1",
        budget_s=1.0,
        force=True,
    )

    assert pinned_under == {1}
    assert torch.sim.current_device() == 0
    assert made.loader.device == torch.device("sim:1")


def test_a_mere_look_makes_no_device_current_that_has_not_started(pinned_under):
    """Making a device current would start it."""
    diagnose(DataLoader(SMALL, 16, pin_memory=True), device="sim:1", budget_s=0.5)

    assert not torch.sim.is_initialized()
    assert pinned_under == set()


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize("used", [True, False])
def test_numbers_of_a_device_go_on_as_without_the_block(used):
    """Also of one that is first used within, which begins with its seed."""
    if used:
        torch.ones(1, device="sim")

    with kept():
        expected = torch.rand(3, device="sim").tolist()

    assert torch.rand(3, device="sim").tolist() == expected


@pytest.mark.usefixtures("box")
@pytest.mark.parametrize(
    ("rounds", "workers", "state"),
    [(4, 4, State.FASTER), (4, "auto", State.FASTER), (1, 4, State.SAME)],
)
def test_workers_that_start_slowly_are_faster_all_the_same(
    monkeypatch, rounds, workers, state
):
    """Both loops are open when they are timed; one round says nothing of either."""

    def measured(loader, **_):
        count = loader.num_workers
        between = Samples((0.036 / max(count, 1),) * rounds)
        return Loading(between, count, start_s=0.5, share_s=0.001 * count)

    monkeypatch.setattr(load, "measure_loading", measured)
    monkeypatch.setattr(load, "MOST", 4)
    loader = DataLoader(TensorDataset(torch.rand(128, 8)), 8)

    report = improve(loader, name="dl", workers=workers, budget_s=40.0).report

    assert report.state is state
    ratio = report.end_to_end.result.ratio
    assert 1 / ratio == pytest.approx(4, rel=0.1)
    assert 1 / ratio <= report.bound.gain(Remedy.EVERYTHING).times * (1 + 1e-9)
    assert ("too few to tell" in report.headline) is (state is State.SAME)


@pytest.mark.usefixtures("box")
def test_each_part_is_measured_as_the_model_has_it():
    """Three ways to copy 4 MiB, and a stand-in as long as the slowest part."""
    known = Loading(Samples((2e-3,) * 3), 0)

    found = measure_feed(
        torch.zeros(1 << 20), open_runtime("sim"), 0, load=known, budget_s=1.0
    )

    pageable = found.copy(pinned=False, blocking=True)
    pinned = found.copy(pinned=True, blocking=False)
    assert len(found.copies) == 3
    assert pageable.host.median_s > 5 * pinned.device.median_s
    assert pinned.host.median_s < pinned.device.median_s
    assert found.step.synthetic
    assert found.step.samples.median_s == pytest.approx(2e-3, rel=0.05)
