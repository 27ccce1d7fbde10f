"""`%gpu_open` as it is typed, and `python -m gpumagic open`."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from gpumagic import __main__ as command
from gpumagic.errors import GpuMagicError, UsageProblem
from gpumagic.gpu_open.magic import OpenMagics
from gpumagic.notebook.session import Session
from tests.gpu_open.written import write_job, write_snapshot, write_trace


@pytest.fixture
def shell():
    """A shell with this one magic."""
    shell = InteractiveShell()
    shell.register_magics(OpenMagics(shell, Session()))
    yield shell
    shell.reset(new_session=False)
    shell.history_manager.end_session()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with recordings, and in it."""
    monkeypatch.chdir(tmp_path)
    write_job(tmp_path / "traces", 3, slow=2)
    write_trace(tmp_path / "before.json", rank=0)
    write_trace(tmp_path / "after.json", rank=0, own_us=600, last_us=600)
    write_snapshot(tmp_path / "oom.pickle")
    write_trace(tmp_path / "two words.json", rank=0)
    return tmp_path


def opened(shell, line):
    """The report that a line hands out, without showing it."""
    return shell.run_line_magic("gpu_open", f"-o -q {line}")


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ('"two words.json"', [0]),
        ("traces/rank1.json.gz traces/rank0.json.gz", [0, 1]),
        ("traces/rank[02].json.gz", [0, 2]),
        ("{folder}", [0, 1, 2]),
        ("$folder/rank1.json.gz {folder}/rank0.*", [0, 1]),
        ("run_{0}.json", [9]),
        ("--compare traces/rank0.json.gz traces/rank1.json.gz", [0, 1]),
    ],
)
def test_files_are_named_as_in_a_shell(shell, here, line, ranks):
    """Blanks, folders, patterns, variables; a file may have braces in its name."""
    shell.user_ns["folder"] = here / "two words"
    (here / "two words").symlink_to("traces")
    write_trace(here / "run_{0}.json", rank=9)

    assert [each.rank for each in opened(shell, line).ranks] == ranks


@pytest.mark.parametrize(
    ("line", "settings", "total"),
    [
        ("oom.pickle --replay", 4, None),
        ("oom.pickle --replay default", ["expandable_segments:False", ""], None),
        ("--replay oom.pickle", 4, None),
        ("oom.pickle --replay 24GiB", 5, 24 << 30),
    ],
)
def test_behind_replay_stands_a_setting_a_size_or_a_file(shell, line, settings, total):
    """The word `default` is torch's own setting, which has no text."""
    (found,) = opened(shell, line).replays
    texts = [each.setting for each in found.replays]
    assert settings in (texts, len(texts))
    assert total in {None, found.replays[1].total_bytes}


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("", "no file was named", "%gpu_open"),
        ("bfore.json", "there is no file bfore.json", "before.json"),
        ("before.json --replay", "--replay is for memory snapshots", "leave it out"),
        ("oom.pickle --replay expandible_segments:True", "expandible", ""),
        ("oom.pickle --replay 3Gub", "3Gub", "write"),
        ("oom.pickle --replay 0GiB", "no GPU has 0 B of memory", "24GiB"),
        ("oom.pickle --replay expandable_segments", "no setting", ":True"),
    ],
)
def test_what_does_not_belong_together_is_refused(shell, line, problem, hint):
    """In two lines: what is wrong, and what to type."""
    with pytest.raises((GpuMagicError, UsageProblem)) as refused:
        opened(shell, line)

    assert problem in refused.value.problem
    assert hint in (refused.value.hint or "")


def test_the_command_writes_a_page_and_tells_what_is_wrong(capsys, here):
    """With all that is folded, beside what it prints; an error is two lines."""
    words = ["open", "oom.pickle", "--replay", "--html", "out.html"]
    assert command.main(words) == 0
    out, errors = capsys.readouterr()
    page = (here / "out.html").read_text(encoding="utf-8")
    assert errors == ""
    assert page.startswith("<!doctype html>")
    assert out.partition("\n")[0].split(";")[0] in page
    assert "How it was measured" in page
    assert "<script" not in page

    assert command.main(["open", "before.json", "--html", "no/where.html"]) == 2
    out, errors = capsys.readouterr()
    assert out == ""
    assert "no/where.html cannot" in errors
    assert len(errors.splitlines()) == 2
