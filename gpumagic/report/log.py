"""Writes what a notebook has kept to a file, as CSV or JSON by its ending."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpumagic.errors import GpuMagicError

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = dict[str, Any]


def save_rows(file: str, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write rows of plain values; an old file is replaced."""
    write = {".csv": _as_csv, ".json": _as_json}.get(Path(file).suffix.lower())
    if write is None:
        raise GpuMagicError(
            f"the log can be saved as .csv or .json, not as {file}",
            "give the file one of these endings: log.csv",
        )
    try:
        Path(file).write_text(write(rows, columns), encoding="utf-8")
    except OSError as error:
        raise GpuMagicError(
            f"the log could not be saved as {file}: {error.strerror}",
            "name a folder that is there and that you may write to",
        ) from None


def _as_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row[column] for column in columns] for row in rows)
    return text.getvalue()


def _as_json(rows: Sequence[Row], columns: Sequence[str]) -> str:
    ordered = [{column: row[column] for column in columns} for row in rows]
    return json.dumps(ordered, indent=2) + "\n"
