"""What can go wrong, as types: each text names the value, the limit and the way out.

Time-outs are the built-in ``TimeoutError``; bad arguments are the built-in ``ValueError`` and ``TypeError``.
"""


class ArenaError(Exception):
    """Base of all errors of this package."""


class CapacityError(ArenaError):
    """The memory that was asked for is not there.  Make it smaller, or raise the limit that the text names."""


class CorruptError(ArenaError):
    """Shared memory holds a value that the protocol cannot have written.  Nothing was read through it; end the process."""


class StaleSlotError(CorruptError):
    """A message names a generation that its slot no longer carries.  Unreachable in the verified protocol: a corruption."""


class WriterDied(ArenaError):
    """The writer's process has ended and every published message was read.  Live tensors stay valid; make a new queue."""


class ReaderDied(ArenaError):
    """A reader's process has ended.  Start it again (it may take its rank from the same handle) or shut down."""


class ForkedError(ArenaError):
    """An object inherited through ``fork`` was used in the child.  Open the handle anew in the child."""

    def __init__(self, message: str = "a queue or cache made before a fork: open its handle anew in the child") -> None:
        super().__init__(message)


class AttachError(ArenaError):
    """A handle does not lead to its segment from here.  The text says which backing would, and why this one does not."""


class InvalidHandle(ArenaError):
    """A handle leads nowhere: it was altered, cut short, belongs to another segment, or is old (then a ``CacheMiss``)."""


class CacheMiss(InvalidHandle):
    """An authentic handle is old: its object is no longer in the cache.  Send it again; ``keys`` lists all missing ones."""

    def __init__(self, message: str, keys: tuple[bytes, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class MessageLost(ArenaError):
    """An out-of-band message did not arrive.  The queue is out of step: shut down and start again."""


class Cancelled(ArenaError):
    """``shutdown()`` ended the call, in this process or in the writer's."""


class DeviceError(ArenaError):
    """A call to the device's driver failed; ``code`` is the driver's.  Memory that it refused to pin stays usable."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class DeviceBusy(DeviceError):
    """The device cannot do this now, as its stream is being captured into a graph.  Try again after the capture."""
