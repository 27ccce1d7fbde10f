"""Options, words, names and devices complete behind our magics."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
from IPython import version_info
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import magics_class
from IPython.core.magic_arguments import magic_arguments

from gpumagic import extension
from gpumagic.devices.protocols import Gpu, Inventory
from gpumagic.notebook.arguments import argument, word
from gpumagic.notebook.completion import Completion
from gpumagic.notebook.magics import GpuMagics, gpu_magic, output_options
from gpumagic.notebook.session import Session

# IPython 7 has no way to keep its own guesses out.
CAN_KEEP_OUT = version_info[0] > 7


class TwoGpus:
    """A driver that has two GPUs."""

    simulated = False

    def inventory(self):
        """Two, of which one has a name of its own."""
        return Inventory(gpus=(Gpu(0, uuid="GPU-1a2b"), Gpu(1)))


@magics_class
class ProbeMagics(GpuMagics):
    """Magics with one of everything that can be completed."""

    @gpu_magic
    @magic_arguments()
    @argument("name", nargs="?", metavar="NAME")
    @argument("--quick", action="store_true")
    @argument("--device", metavar="DEVICE")
    @argument("--unit", choices=["ms", "us"])
    @argument("--count", type=int)
    @argument("--level", offers=("low", "high"))
    @argument("--pair", offers=lambda magics, begun: magics.pairs(begun))
    @output_options
    def probe(self, line, cell=None):
        """Take a name."""

    @gpu_magic
    @magic_arguments()
    @argument("code", nargs="?", metavar="CODE")
    @argument("--label")
    @word("log [FILE]", "All of them.")
    @word("off", "Stop that.")
    @output_options
    def run_probe(self, line, cell=None):
        """Take code, or a word."""

    def pairs(self, begun):
        """What can follow, behind what is there."""
        return [f"{begun}{number}" for number in (0, 1)]


LONG = ["--all", "--count", "--device", "--help", "--json", "--level", "--output"]
LONG += ["--pair", "--quick", "--quiet", "--show", "--unit", "--variable"]


@pytest.fixture
def bare_shell():
    """A shell with a few variables."""
    shell = InteractiveShell.instance()
    shell.Completer._names = []  # IPython 7 would list all of Unicode at the first Tab
    shell.user_ns.update(loader=1, loss=2, _hidden=3)
    yield shell
    shell.reset(new_session=False)
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(bare_shell):
    """A shell with those magics."""
    session = Session(TwoGpus)
    bare_shell.magics_manager.register(ProbeMagics(bare_shell, session))
    with ExitStack() as undo:
        names = {"probe", "run_probe"}
        Completion(bare_shell, session, names).install(undo)
        yield bare_shell


@pytest.fixture
def loaded(bare_shell):
    """A shell with the extension."""
    extension.load(bare_shell)
    yield bare_shell
    extension.unload(bare_shell)


def words_at_end(shell, line):
    """What the last word of a line can become, as a front end asks for it."""
    kept = line[: len(line) - len(line.split(" ")[-1])]
    with provisionalcompleter():
        offered = shell.Completer.completions(line, len(line))
        lines = [line[: each.start] + each.text for each in offered]
    assert all(each.startswith(kept) for each in lines)
    return {each[len(kept) :] for each in lines}


def assert_offered(shell, line, words):
    """These words and no others, as far as this IPython lets us say so."""
    offered = words_at_end(shell, line)
    assert set(words) <= offered
    assert not CAN_KEEP_OUT or offered == set(words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%probe --", LONG),
        ("%probe --qui", ["--quick", "--quiet"]),
        ("x = %probe --dev", ["--device"]),
        ("%probe --device cuda:", ["cuda:0", "cuda:1"]),
        ("%probe --device=cuda:", ["--device=cuda:0", "--device=cuda:1"]),
        ("%probe --unit u", ["us"]),
        ("%probe --level ", ["high", "low"]),
        ("%probe --pair 2,", ["2,0", "2,1"]),
        ("%probe load", ["loader"]),
        ("%probe --count 3 load", ["loader"]),
        ("%probe loader --qui", ["--quick", "--quiet"]),
        ("%run_probe --label 'a b' --j", ["--json"]),
    ],
)
def test_what_completes(shell, line, words):
    """The begun word becomes every word that fits, and nothing else."""
    assert_offered(shell, line, words)


@pytest.mark.parametrize(
    "line",
    [
        "%other --",
        "probe --",
        "x = 3 --",
        "%probe --count 1",
        "%probe loader lo",
        "%run_probe f(x) --",
    ],
)
def test_what_is_left_to_ipython(shell, line):
    """Other magics, code, and values that can be anything are none of ours."""
    completion = Completion(shell, Session(TwoGpus), {"probe", "run_probe"})
    found = completion.candidates(line)
    assert found is None or found.words == []


# ---------------------------------------------------------------- our own magics


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%gpu_mem ma", ["map"]),
        ("result = %gpu_mem f", ["fit", "free"]),
        ("%gpu_select fr", ["free"]),
        ("%gpu_select --simulate h", ["h100", "h100-pcie", "h200"]),
        ("%gpu_select --simulate 2xh2", ["2xh200"]),
        ("%pin_loader x --workers ", ["auto"]),
    ],
)
def test_what_completes_behind_each_magic(loaded, line, words):
    """Each room's own words and values complete."""
    assert_offered(loaded, line, words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%cuda_sync_time ", {"on", "off", "loss"}),
        ("%cuda_sync_time lo", {"loss", "loader"}),
        ("%tensor_info lo", {"loss", "loader"}),
        ("%tensor_info --view 6,4 loss, loa", {"loader"}),
    ],
)
def test_code_completes_behind_the_magics_that_take_it(loaded, line, words):
    """Names of the notebook, and words where there are any, but no names of magics."""
    offered = words_at_end(loaded, line)
    assert words <= offered
    assert not CAN_KEEP_OUT or not any(each.startswith("%") for each in offered)


def test_recordings_complete_behind_the_magic_that_opens_them(
    loaded, tmp_path, monkeypatch
):
    """Files that can be recordings, and folders; one after the other."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    for name in ("rank0.json.gz", "rank1.json.gz", "notes.txt", "traces/rank2.json"):
        (tmp_path / name).touch()

    files = ["rank0.json.gz", "rank1.json.gz"]
    assert_offered(loaded, "%gpu_open ", [*files, "traces/"])
    assert_offered(loaded, "%gpu_open --compare ran", files)
    assert_offered(loaded, "%gpu_open rank0.json.gz tra", ["traces/"])
    assert_offered(loaded, "%gpu_open traces/", ["traces/rank2.json"])


def test_gpus_complete_by_number_and_by_uuid(bare_shell, monkeypatch):
    """Numbers first, a UUID once it is begun, and none twice."""
    monkeypatch.setattr(Session.__init__, "__defaults__", (TwoGpus,))
    extension.load(bare_shell)
    try:
        assert_offered(bare_shell, "%gpu_select ", ["0", "1", "all", "free", "none"])
        assert_offered(bare_shell, "%gpu_select GPU", ["GPU-1a2b"])
        assert_offered(bare_shell, "%gpu_select 1,", ["1,0"])
    finally:
        extension.unload(bare_shell)


@pytest.mark.parametrize(
    ("as_cuda", "real", "devices"),
    [
        (False, (), ["cpu", "sim:0", "sim:1"]),
        (True, (), ["cpu", "cuda:0", "cuda:1"]),
        (False, (Gpu(0),), ["cpu", "cuda:0", "sim:0", "sim:1"]),
    ],
)
def test_simulated_devices_have_the_word_that_code_has(
    shell, monkeypatch, as_cuda, real, devices
):
    """`sim:0`, or `cuda:0` where the simulated GPU stands in for it."""
    simulated = TwoGpus()
    simulated.simulated = True
    box = SimpleNamespace(driver=simulated, as_cuda=as_cuda)
    monkeypatch.setitem(sys.modules, "torch.sim", SimpleNamespace(simulated_box=box))
    machine = SimpleNamespace(
        simulated=False, inventory=lambda: Inventory(gpus=tuple(real))
    )

    completion = Completion(shell, Session(lambda: machine), {"probe"})

    assert completion.candidates("%probe --device ").words == devices


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%gpu_doctor w", ["words"]),
        ("%gpu_doctor words lau", ["launch"]),
        ("%gpu_doctor words loa", ["loaders", "loading"]),
        ("%gpu_doctor words launch k", []),
        ("%gpu_mem map k", []),
        ("%cuda_sync_time --repeat=", ["--repeat=latency", "--repeat=throughput"]),
    ],
)
def test_what_a_word_takes_is_offered_behind_it(loaded, line, words):
    """Terms stand behind `words`, and the ways to wait behind `--repeat=`."""
    names = {"gpu_doctor", "gpu_mem", "cuda_sync_time"}
    found = Completion(loaded, Session(TwoGpus), names).candidates(line)
    assert found.words == words


class TouchyLoader:
    """A loader that tells whenever one of its attributes is asked for."""

    asked = 0

    def __getattribute__(self, name):
        """Count every look."""
        TouchyLoader.asked += 1
        return object.__getattribute__(self, name)

    def __iter__(self):
        """Nothing in it."""
        return iter(())


def test_loaders_complete_where_one_is_wanted(loaded):
    """Only loaders are offered, and to find them no code of theirs is run."""
    loaded.user_ns.update(train_dl=TouchyLoader(), train_class=TouchyLoader)
    loaded.user_ns.update(train_step=len)

    assert_offered(loaded, "%pin_loader tra", ["train_dl"])
    assert_offered(loaded, "%pin_loader train_dl --step train_s", ["train_step"])

    completion = Completion(loaded, Session(TwoGpus), {"pin_loader"})
    TouchyLoader.asked = 0
    assert completion.candidates("%pin_loader train_d").words == ["train_dl"]
    assert TouchyLoader.asked == 0
