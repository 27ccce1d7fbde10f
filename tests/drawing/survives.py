"""What HTML keeps in an untrusted notebook, and that it says what the text says.

The lists are what JupyterLab 4.6 lets through (its sanitizer, and the DOM
compared: tests/browser), less what no view here has a use for. It is the one that
tells pieces apart; what others take away is in tests/frontends/rules.py.
"""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

ELEMENTS = frozenset(
    re.findall(
        r"[a-z]+",
        """
        abbr br caption code dd details div dl dt em figcaption figure img kbd li ol p
        pre small span strong summary table tbody td tfoot th thead tr ul wbr
        """,
    )
)
VOID = frozenset({"br", "img", "wbr"})
ATTRIBUTES = {
    "*": {"style", "title", "lang"},
    "img": {"alt", "src", "width", "height"},
    "table": {"cellpadding"},
    "td": {"align", "colspan", "rowspan", "headers"},
    "th": {"align", "colspan", "rowspan", "scope", "abbr"},
    "details": {"open"},
}
PROPERTIES = frozenset(
    re.findall(
        r"[a-z-]+",
        """
        background background-color border border-bottom border-collapse border-left
        border-radius border-right border-top caption-side color cursor display flex
        font-family font-size font-style font-weight gap grid-template-columns height
        justify-content line-height margin margin-bottom margin-left margin-right
        margin-top max-width min-width overflow-x padding padding-bottom padding-left
        padding-right padding-top text-align vertical-align white-space width
        """,
    )
)
_NUMBER = r"-?(?:\d+\.?\d*|\.\d+)"
_COLOUR = rf"#[0-9A-Fa-f]{{6}}(?:[0-9A-Fa-f]{{2}})?|rgba?\((?:{_NUMBER},? ?){{3,4}}\)"
_WORD = rf"[a-z-]+|{_NUMBER}(?:px|em|ch|%|deg)?|{_COLOUR}"
_STOP = rf"(?:{_COLOUR}|transparent)(?: {_NUMBER}%)?"
VALUE = re.compile(
    rf"(?:{_WORD})(?: (?:{_WORD}))*|minmax\({_NUMBER},{_NUMBER}em\)"
    rf"|linear-gradient\({_NUMBER}deg(?:,{_STOP})+\)"
)
PICTURE = re.compile(r"data:image/(svg\+xml|png);base64,[A-Za-z0-9+/]+=*")
FORBIDDEN_WORDS = ("currentcolor", "var")

# Said where a line is too narrow for what is drawn on it, not where it is wide.
_FINE = re.compile(r"where \w+ are too fine to draw one by one, .* share")

# A dot or comma between digits belongs to the number, one at its end does not.
_FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


class _Reader(HTMLParser):
    """Collects what is wrong with HTML, and the words that it shows."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.faults = []
        self.words = []
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ELEMENTS:
            self.faults.append(f"<{tag}> is dropped")
        is_wide = tag == "img" and "width:100%" in (dict(attrs).get("style") or "")
        allowed = ATTRIBUTES["*"] | ATTRIBUTES.get(tag, set())
        for name, value in attrs:
            if name not in allowed:
                self.faults.append(f"<{tag} {name}> is dropped")
            elif name == "style":
                self.faults.extend(style_faults(value))
            elif name == "src" and not PICTURE.fullmatch(value):
                self.faults.append(f"<{tag} src> is not a picture in itself")
            elif (name == "alt" and not is_wide) or (name == "title" and tag != "span"):
                # What lies over a picture, and what is said of one that the text
                # draws as well, is a closer look, for which the text has no room.
                self.words.append(value)
        if tag == "img" and not dict(attrs).get("alt"):
            self.faults.append("<img> without alt says nothing to the ear")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data):
        self.words.append(data)


def style_faults(style):
    """What of an inline style would be dropped, or would fail on one theme."""
    for declaration in style.split(";"):
        name, _, value = declaration.partition(":")
        if name not in PROPERTIES:
            yield f"the property {name!r} is dropped"
        bad = any(word in value.lower() for word in FORBIDDEN_WORDS)
        if bad or not VALUE.fullmatch(value):
            yield f"the value of {declaration!r} is dropped"


def read(html):
    """The faults of some HTML, and the words that it shows or says."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    faults = [*reader.faults, *(f"<{tag}> is not closed" for tag in reader.open)]
    return faults, " ".join(reader.words)


def assert_survives(html):
    """Nothing in this HTML is dropped by a front end that does not trust it."""
    faults, _ = read(html)
    assert not faults, "\n".join(sorted(set(faults)))


def assert_numbers_agree(drawing, width=88):
    """Every number that the HTML shows, says or folds is in the whole text as well.

    The text is read where it has all the width it may want, as a number within
    a very long name may be folded; and at the usual width, no letter is lost.
    """
    everything = drawing.whole()
    wide = _FINE.sub("", everything.text(2_000))
    _, words = read(drawing.html())
    missing = set(_FIGURE.findall(words)) - set(_FIGURE.findall(wide))
    assert not missing, f"in the HTML and not in the text: {sorted(missing)}"
    lost = _letters(wide) - _letters(everything.text(width))
    assert not lost, f"lost at {width} columns: {lost}"


def _letters(text):
    return Counter(character for character in text if character.isalnum())
