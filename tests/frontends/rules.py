"""What each front end takes away from the HTML of an output, and who says so.

`drops` is written as selectors are: `tag`, `@attribute`, `:property` of a style,
`=word` in the value of one, `img:data` for a picture in the document itself. A
star stands for any ending.

| Front end | What is said of it |
| --- | --- |
| JupyterLab, not trusted | measured on 4.6: the DOM of one notebook compared, trusted \
and not (tests/browser does it again); jupyterlab#6010, #9650, #10464 |
| VS Code, trusted | the renderer of notebooks sets the HTML as it is and runs its \
scripts (vscode#317015, #317014); pictures may be `data:`; the colours of JupyterLab \
are not there (xarray#4024) |
| VS Code, restricted | no HTML at all: the plain text is shown (vscode#118584, \
#319593) |
| Colab | each output in a frame of its own, with nothing taken away; the theme is \
`html[theme=dark]`, its variables are not to be used (colabtools#1214, #2485) |
| GitHub, a notebook | `style` elements and attributes, scripts, ids, `hidden` \
(nbviewer#450, xarray#4053, #6125, ipyplot#3, pandas#37936); pictures stay, SVG as \
`data:` too (IRkernel#145, atoti-notebooks#425); nbviewer itself takes nothing away |
| GitHub, Markdown | that, and pictures whose address is not http(s): GitHub's own \
filter, html-pipeline, lists what stays |

`nbconvert --sanitize-html` is not here: its filter is installed, and is called.
"""

from __future__ import annotations

from typing import NamedTuple


class FrontEnd(NamedTuple):
    """A front end, and what it drops."""

    name: str
    drops: frozenset[str]
    shows_html: bool = True

    @property
    def keeps_pictures(self) -> bool:
        """Whether a picture in the document itself is shown."""
        return not self.drops & {"img", "img:data"}

    @property
    def keeps_styles(self) -> bool:
        """Whether bars and badges have their colours."""
        return "@style" not in self.drops


def _drops(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ACTIVE = "script iframe object embed @on*"
_OF_A_CODE_HOST = f"{_ACTIVE} style link form input svg math @style @class @id @hidden"

JUPYTERLAB = FrontEnd(
    "JupyterLab, not trusted",
    _drops(
        f"{_ACTIVE} style svg math @id @role @hidden @tabindex @aria-* @data-*"
        " :transform :font-variant-numeric :--*"
        " =var( =currentcolor =color-mix( =light-dark("
    ),
)
VS_CODE = FrontEnd("VS Code, trusted", _drops("=var(--jp-"))
VS_CODE_RESTRICTED = FrontEnd("VS Code, restricted", _drops(""), shows_html=False)
COLAB = FrontEnd("Colab", _drops("=var(--jp- =var(--vscode- =var(--colab-"))
GITHUB = FrontEnd("GitHub, a notebook", _drops(_OF_A_CODE_HOST))
MARKDOWN = FrontEnd("GitHub, Markdown", _drops(f"{_OF_A_CODE_HOST} img:data"))

FRONT_ENDS = (JUPYTERLAB, VS_CODE, VS_CODE_RESTRICTED, COLAB, GITHUB, MARKDOWN)
