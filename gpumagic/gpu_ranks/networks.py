"""Finds the network by which ranks of several hosts have met, and lets gloo use it.

Else gloo takes the one that a host's name stands for. That may be the host itself, as
Debian writes it, and then no other host gets through.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "GLOO_SOCKET_IFNAME"
_REACH_S = 2.0  # in which an address answers, or leads nowhere


def is_local(address: str) -> bool:
    """Whether an address means another host to each that hears it."""
    told = ipaddress.ip_address(address.partition("%")[0])
    return told.is_loopback or told.is_link_local


def seen_from_here(host: str) -> str | None:
    """The address that a name stands for here; None where it is one for here alone."""
    with contextlib.suppress(OSError, ValueError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        address = str(found[0][4][0])
        return None if is_local(address) else address
    return None


def interface(address: str) -> str | None:
    """The network by which this process gets to an address; None if that is unknown."""
    try:
        import psutil
    except ImportError:  # it comes with ipyparallel, and with an IPython of today
        return None
    own = ""
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(address, 1, type=socket.SOCK_DGRAM)
        family, kind, _, _, place = found[0]
        with socket.socket(family, kind) as way:
            way.connect(place)  # which sends nothing
            own = way.getsockname()[0]
    return next(
        (
            str(name)
            for name, its in psutil.net_if_addrs().items()
            if own in {each.address for each in its}
        ),
        None,
    )


def gloos_address() -> str | None:
    """Where gloo of this process would wait for others; None if that is unknown."""
    name = os.environ.get(VARIABLE)
    with contextlib.suppress(ImportError, OSError):
        if name is None:
            return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
        import psutil

        its = psutil.net_if_addrs().get(name.partition(",")[0], ())
        kinds = {socket.AF_INET, socket.AF_INET6}
        return next((str(e.address) for e in its if e.family in kinds), None)
    return None


@contextlib.contextmanager
def open_to_all() -> Iterator[tuple[str, int] | None]:
    """Answer others, for as long as the block runs, where gloo would."""
    address = gloos_address()
    try:
        family = socket.AF_INET6 if ":" in (address or "") else socket.AF_INET
        door = socket.create_server((address or "", 0), family=family, backlog=1_000)
    except OSError:
        yield None
        return
    with door:
        yield None if address is None else (address, door.getsockname()[1])


def answers(address: str, port: int) -> bool:
    """Whether this process gets through."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection((address, port), timeout=_REACH_S),
    ):
        return True
    return False


@contextlib.contextmanager
def gloo_uses(name: str | None) -> Iterator[None]:
    """Let groups of gloo that begin within use a network, unless the user names one."""
    if name is None or VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        del os.environ[VARIABLE]
