"""What a device reaches, and what the code got of it."""

from __future__ import annotations

from dataclasses import dataclass

from gpumagic.report.record import Record


@dataclass(frozen=True)
class Peaks(Record):
    """What this device reaches, measured here and now.

    Attributes:
        flops_per_s: Of a large matrix product in this type.

        bytes_per_s: Read plus written, by a long copy within the device.
    """

    dtype: str
    flops_per_s: float | None
    bytes_per_s: float | None
    simulated: bool = False


@dataclass(frozen=True)
class Roofline(Record):
    """How near the run came to what the device can do.

    Attributes:
        flops: Floating point operations of one run, counted in a pass of its own;
            matrix products, convolutions and attention only. None was not counted.

        nbytes: Bytes moved in one run, as the user declared them.

        seconds: The time that they are held against.

        counted: The operations that were counted, by their share of `flops`.

        problem: Why they could not be counted, if they could not.

        devices: How many devices like that of `peaks` worked on it.
    """

    seconds: float
    peaks: Peaks | None
    flops: int | None = None
    nbytes: int | None = None
    counted: tuple[tuple[str, int], ...] = ()
    problem: str | None = None
    hint: str | None = None
    devices: int = 1

    @property
    def peak_flops_per_s(self) -> float | None:
        """The most that the devices compute together."""
        most = None if self.peaks is None else self.peaks.flops_per_s
        return None if most is None else most * self.devices

    @property
    def peak_bytes_per_s(self) -> float | None:
        """The most that the devices read and write together."""
        most = None if self.peaks is None else self.peaks.bytes_per_s
        return None if most is None else most * self.devices

    @property
    def flops_per_s(self) -> float | None:
        """What was achieved."""
        return _rate(self.flops, self.seconds)

    @property
    def bytes_per_s(self) -> float | None:
        """What was achieved."""
        return _rate(self.nbytes, self.seconds)

    @property
    def intensity(self) -> float | None:
        """Operations for each byte."""
        if not self.flops or not self.nbytes:
            return None
        return self.flops / self.nbytes

    @property
    def roof_flops_per_s(self) -> float | None:
        """The most that this intensity allows on these devices."""
        flops, nbytes = self.peak_flops_per_s, self.peak_bytes_per_s
        if flops is None or self.intensity is None or nbytes is None:
            return flops
        return min(flops, self.intensity * nbytes)


def _rate(amount: int | None, seconds: float) -> float | None:
    if amount is None or seconds <= 0:
        return None
    return amount / seconds
