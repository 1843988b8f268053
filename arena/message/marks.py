"""What a dropped lease may have to wait for."""

from __future__ import annotations

from dataclasses import dataclass, field

from arena.device.interface import Event, Stream


class Mark:
    """A point in a stream; passed for good once the device has said so."""

    __slots__ = ("_event", "_passed")

    def __init__(self, event: Event) -> None:
        self._event = event
        self._passed = False

    def is_passed(self) -> bool:
        self._passed = self._passed or self._event.query()
        return self._passed


@dataclass(eq=False)
class Use:
    """A copy from a range of the data area: its mark, or the stream that has none yet; neither: nobody can tell."""

    start: int
    stop: int
    mark: Mark | None = None
    stream: Stream | None = None

    @property
    def is_lost(self) -> bool:
        return self.mark is None and self.stream is None


@dataclass(eq=False)
class Gate:
    """The marks that a dropped grant waits for, and the streams that have yet to be marked; or nobody can tell."""

    marks: list[Mark] = field(default_factory=list)
    unmarked: list[Stream] = field(default_factory=list)
    is_quarantined: bool = False
