"""A device in place of a GPU: it works through a queue beside the host, whose time the tests set."""

from __future__ import annotations


class Device:
    """A device and its host; times in seconds."""

    def __init__(self) -> None:
        self.host = 0.0
        """The host's time."""
        self.idle_from = 0.0
        """The time at which the device has done all work that is queued now."""
        self.made = self.recorded = self.queries = 0
        """Numbers of events made and recorded, and of looks at one."""
        self.waits: list[int] = []
        """How many events were recorded before each wait for the device."""

    def works_on_host(self, seconds: float) -> None:
        self.host += seconds

    def launch(self, seconds: float) -> None:
        """Queue work that takes the device so long; the host goes on at once."""
        self.idle_from = max(self.idle_from, self.host) + seconds

    def event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    """A mark in the device's queue, with the methods of ``torch.cuda.Event``."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.passed_at = float("nan")

    def record(self) -> None:
        self._device.recorded += 1
        self.passed_at = max(self._device.idle_from, self._device.host)

    def query(self) -> bool:
        self._device.queries += 1
        return self.passed_at <= self._device.host

    def synchronize(self) -> None:
        self._device.waits.append(self._device.recorded)
        self._device.host = max(self._device.host, self.passed_at)

    def elapsed_time(self, end_event: Event, /) -> float:
        assert self.query(), "torch refuses an event that the device has not passed"
        assert end_event.query(), "torch refuses an event that the device has not passed"
        return 1000 * (end_event.passed_at - self.passed_at)
