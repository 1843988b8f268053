"""The exit codes of all commands."""

from __future__ import annotations

WRONG = 1
"""The answer is no: a checksum differs, or a slot is leaked."""
FAILED = 3
"""It could not be done; the one line says why. 2 is click's, for arguments that cannot be."""
INTERRUPTED = 130


class CommandFailed(Exception):
    """A command cannot go on; the text says why, and is all that its user needs."""
