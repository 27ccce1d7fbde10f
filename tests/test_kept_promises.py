"""Promises of shared modules: figures at their edges, intervals, what options mean."""

# ruff: noqa: S311 -- noise, no secrets

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from gpumagic.devices import host
from gpumagic.errors import UsageProblem
from gpumagic.notebook import magics as base
from gpumagic.report import log, robust, units


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1024**2 - 1, "1.00 MiB"),
        (1024**3 - 1, "1.00 GiB"),
        (-(1024**2) + 1, "-1.00 MiB"),
        (1023, "1023 B"),
    ],
)
def test_a_size_just_below_a_unit_is_written_in_that_unit(count, text):
    """What rounds to 1024 of one unit reads as 1.00 of the next."""
    assert units.bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(59.4, "59.4 s"), (59.97, "1 min"), (3599.6, "1 h")]
)
def test_a_time_that_rounds_to_a_minute_is_written_as_one(seconds, text):
    """There are no 60.0 s and no 60 min."""
    assert units.seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(4e-5, "<0.01 %"), (-4e-5, "-<0.01 %"), (0.0, "0 %")]
)
def test_a_share_that_is_there_is_never_written_as_none(share, text):
    """What is too small for the digits is said to be small, and not to be zero."""
    assert units.share_text(share) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200.0), ("10min", 600.0), ("3 us", 3e-6)]
)
def test_times_as_people_type_them(text, seconds):
    """Hours, minutes and parts of a second are those of a clock."""
    assert units.parse_seconds(text) == pytest.approx(seconds)


def test_an_unknown_number_of_things_is_said_to_be_unknown():
    """None is not no GPU."""
    assert units.count_text(None, "GPU") == "unknown number of GPUs"
    assert units.count_text(None, "process", "processes").startswith("unknown")


def test_outer_fences_are_three_times_the_middle_half_away():
    """Tukey's outer fence is at 3 interquartile ranges: just inside does not count."""
    values = [1.0, 2.0, 3.0, 4.0]  # with a fifth: quartiles 2 and 4, the fence at 10

    assert robust.outliers([*values, 9.9]) == (1, 0)
    assert robust.outliers([*values, 10.1]) == (1, 1)


def test_an_honest_interval_is_no_wider_than_its_values_are_worth():
    """Values worth a third of their number give one less than twice as wide."""
    noise, wider = random.Random(5), []

    for _ in range(200):
        values, state = [], 0.0
        for _ in range(100):
            state = 0.5 * state + noise.gauss(0, 1)
            values.append(state)
        honest, naive = robust.honest_interval(values), robust.median_interval(values)
        wider.append((honest.high - honest.low) / (naive.high - naive.low))

    assert 1.3 < robust.median(wider) < 2.3


@pytest.mark.parametrize("json", [True, False])
def test_a_quiet_report_is_not_shown_in_any_form(monkeypatch, json):
    """`-q` shows nothing, also where `--json` says how it would be shown."""
    # Given
    shown = []
    monkeypatch.setattr(base, "display", lambda *each, **_: shown.append(each))
    magics = SimpleNamespace(
        shell=SimpleNamespace(user_ns={}, execution_count=1),
        session=SimpleNamespace(remember_shown=lambda *_: None),
    )
    options = SimpleNamespace(variable="kept", json=json, quiet=True, output=False)
    report = SimpleNamespace(to_dict=dict)

    # When
    handed_out = base.GpuMagics.show(magics, report, options)

    # Then
    assert (shown, handed_out) == ([], None)
    assert magics.shell.user_ns == {"kept": report}


@pytest.mark.parametrize(("outer", "inner"), [(3, 8), (8, 3)])
def test_of_nested_control_groups_the_tightest_limit_counts(tmp_path, outer, inner):
    """Where a group with a limit lies in one with a limit, the smaller room is left."""
    # Given a box in a pod, each with a limit and one byte used
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/pod/box\n")
    pod = tmp_path / "sys/fs/cgroup/pod"
    (pod / "box").mkdir(parents=True)
    for folder, limit in ((pod, outer), (pod / "box", inner)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text("1\n")

    # When
    room = host.container_room(tmp_path)

    # Then
    assert room.nbytes == 2
    assert host.available_bytes(tmp_path) == 2


@pytest.mark.parametrize("name", ["LOG.CSV", "log.Json"])
def test_an_ending_in_capitals_is_the_same_ending(tmp_path, name):
    """A log is saved by its ending, however that is written."""
    log.save_rows(str(tmp_path / name), [{"a": 1}], ["a"])

    assert "1" in (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["class", "None", "a b", "1st", "x.y"])
def test_a_report_is_kept_under_names_that_can_be_assigned_to(text):
    """What is no name, or a word of Python's own, is refused before anything runs."""
    with pytest.raises(UsageProblem):
        base.variable_name(text)

    assert base.variable_name("klass") == "klass"
