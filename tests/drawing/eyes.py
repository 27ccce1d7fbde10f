"""How colours look to whom: Machado, Oliveira and Fernandes, 2009, at full severity."""

from __future__ import annotations

import math

# Of red, green and blue light how much is seen as which.
EYES = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
    "grey": ((0.2126, 0.7152, 0.0722),) * 3,
}
_XYZ = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
_WHITE = (0.95047, 1.0, 1.08883)


def apart(one: str, other: str, eyes: str) -> float:
    """How far apart two colours are seen: their distance in CIE Lab."""
    return math.dist(_lab(_seen(one, eyes)), _lab(_seen(other, eyes)))


def as_svg_filter(eyes: str) -> str:
    """The same as what a page can be looked at through."""
    rows = (f"{' '.join(map(str, row))} 0 0" for row in EYES[eyes])
    return (
        f'<filter id="{eyes}" color-interpolation-filters="linearRGB"><feColorMatrix '
        f'type="matrix" values="{" ".join(rows)} 0 0 0 1 0"/></filter>'
    )


def _seen(colour: str, eyes: str) -> list[float]:
    light = [_linear(int(colour[at : at + 2], 16) / 255) for at in (1, 3, 5)]
    return [min(max(each, 0.0), 1.0) for each in _times(EYES[eyes], light)]


def _linear(channel: float) -> float:
    if channel <= 0.04045:
        return channel / 12.92
    return ((channel + 0.055) / 1.055) ** 2.4


def _times(matrix, vector) -> list[float]:
    return [sum(map(float.__mul__, row, vector)) for row in matrix]


def _lab(light: list[float]) -> tuple[float, float, float]:
    x, y, z = (
        _cone(each / white)
        for each, white in zip(_times(_XYZ, light), _WHITE, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def _cone(share: float) -> float:
    return math.cbrt(share) if share > 0.008856 else 7.787 * share + 16 / 116
