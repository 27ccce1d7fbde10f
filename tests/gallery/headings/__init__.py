"""A sentence for each sample: what it shows, in a reader's words.

A room's file has one `HEADINGS`; the names in it are those of the room's samples.
"""

from __future__ import annotations

import importlib


def of_room(room: str) -> dict[str, str]:
    """The sentences of a room's samples by their names in it."""
    return importlib.import_module(f"tests.gallery.headings.{room}").HEADINGS
