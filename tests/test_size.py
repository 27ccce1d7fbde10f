"""The house does not grow back."""

import json

from tests.size import FILE, measured


def test_no_figure_is_above_what_size_json_has():
    """What is added somewhere is taken out elsewhere; `make size` notes what fell."""
    agreed, now = json.loads(FILE.read_text()), measured()

    for part in ("package", "tests", "typed"):
        grown = {
            name: (agreed[part][name], figure)
            for name, figure in now[part].items()
            if figure > agreed[part][name]
        }
        assert not grown, f"{part} has grown (was, is): {grown}"
