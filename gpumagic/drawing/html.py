"""HTML elements as strings, escaped by construction.

Whatever becomes `Html` went through `escape` or was built by `element`; a name
with a `<` in it cannot become markup by being forgotten.
"""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, NewType

from gpumagic.drawing.ink import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

Html = NewType("Html", str)

# What stands beside tables begins where the text in their cells does.
INSET = ".45em"

# Prose ends where the widest tables do.
WIDEST_EM = 72

_LONG_NAME, _LONG_WORD, _SHORT_LABEL = 24, 32, 16

# Part of a number or a version, which two lines would make into two.
_IN_NUMBER = re.compile(r"\d[.,]\d|\d{6}")

# Up to 16 characters, or less where a separator offers itself.
_PIECE = re.compile(r".{1,15}?[._/:,-]+|.{1,16}")

# An option such as --step: a hyphen is where a line may break.
_OPTION = re.compile(r"--(?=\w)")

# What stands between two backticks, in sentences.
_CODE = re.compile(r"`([^`\s](?:[^`]*[^`\s])?)`")

_VOID = frozenset({"br", "img", "path", "circle"})


def escape(text: str) -> Html:
    """Any text as safe HTML, on one line.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return Html(html.escape(clean(text)))


def words(text: str) -> Html:
    """Text to be read: like `escape`, with places where a very long word may break.

    Names of tensors and kernels run to a hundred characters without a blank;
    unbroken, one of them pushes all numbers of its table out of sight. An option
    with its hyphens stays whole.
    """
    return _readable(clean(text))


def sentences(text: str) -> Html:
    """Like `words`, with what stands in backticks as code.

    >>> sentences("type `x.to(device)` again")
    'type <code>x.to(device)</code> again'
    """
    pieces = map(_readable, _CODE.split(clean(text)))
    # A pattern with one group splits into what is around it and what is in it, in turn.
    return Html(
        "".join(
            element("code", piece) if number % 2 else piece
            for number, piece in enumerate(pieces)
        )
    )


def _readable(cleaned: str) -> Html:
    return Html(" ".join(map(_breakable, cleaned.split(" "))))


def _breakable(word: str) -> str:
    most = _LONG_WORD if _IN_NUMBER.search(word) else _LONG_NAME
    if len(word) <= most:
        if _OPTION.search(word):
            return element("span", escape(word), style="white-space:nowrap")
        return escape(word)
    return "<wbr/>".join(map(escape, _PIECE.findall(word)))


def unbroken(text: str) -> Html:
    """Like `escape`, with a number kept on one line with its unit.

    `white-space: nowrap` would do, were it not 25 bytes for each cell.
    """
    if len(text) > _LONG_WORD:
        return words(text)
    return Html(escape(text).replace(" ", "\N{NO-BREAK SPACE}"))


def label(text: str) -> Html:
    """Like `words`, but short ones stay whole beside a picture that takes all."""
    return unbroken(text) if len(text) <= _SHORT_LABEL else words(text)


def element(name: str, *children: Html, **attributes: str | int) -> Html:
    """One element; an attribute with an empty value is left out.

    >>> element("td", escape("1 < 2"), align="right")
    '<td align="right">1 &lt; 2</td>'
    """
    start = name + "".join(
        f' {key.replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value != ""
    )
    if name in _VOID:
        return Html(f"<{start}/>")
    return Html(f"<{start}>{''.join(children)}</{name}>")


def captioned(caption: str, *content: Html, line_height: float = 1.6) -> Html:
    """A paragraph under its caption: a picture, and what is said of it."""
    return element(
        "p",
        element("strong", words(caption), style="font-weight:600"),
        element("br"),
        *content,
        style=f"margin:0 0 .9em {INSET};line-height:{line_height}",
    )


def lines(pieces: Iterable[str]) -> Html:
    """Pieces of HTML under each other, so that a stored output can be compared."""
    return Html("\n".join(piece for piece in pieces if piece))


def page(title: str, body: Html) -> str:
    """A file that a browser opens, light or dark as its reader has it."""
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title>"
        '<body style="font:14px/1.4 system-ui,sans-serif;max-width:1100px;'
        f'margin:1.5em auto;padding:0 1em">\n{body}\n</body></html>\n'
    )
