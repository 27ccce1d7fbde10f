"""What every magic does with a report, and the names it may be kept under."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpumagic.errors import UsageProblem
from gpumagic.notebook import magics


@pytest.mark.parametrize("json", [True, False])
def test_a_quiet_report_is_not_shown_in_any_form(monkeypatch, json):
    """`-q` shows nothing, also where `--json` says how it would be shown."""
    # Given
    shown = []
    monkeypatch.setattr(magics, "display", lambda *each, **_: shown.append(each))
    ours = SimpleNamespace(
        shell=SimpleNamespace(user_ns={}, execution_count=1),
        session=SimpleNamespace(remember_shown=lambda *_: None),
    )
    options = SimpleNamespace(variable="kept", json=json, quiet=True, output=False)
    report = SimpleNamespace(to_dict=dict)

    # When
    handed_out = magics.GpuMagics.show(ours, report, options)

    # Then
    assert (shown, handed_out) == ([], None)
    assert ours.shell.user_ns == {"kept": report}


@pytest.mark.parametrize("text", ["class", "None", "a b", "1st", "x.y"])
def test_a_report_is_kept_under_names_that_can_be_assigned_to(text):
    """What is no name, or a word of Python's own, is refused before anything runs."""
    with pytest.raises(UsageProblem):
        magics.variable_name(text)

    assert magics.variable_name("klass") == "klass"
