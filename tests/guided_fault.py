"""A fault for the fuzzer that coverage leads: nobody meets it by chance."""

from __future__ import annotations

from random import Random

from fuzz.session import Failure


def fault(rng: Random) -> None:
    """Fails on four draws in a row."""
    if rng.getrandbits(8) == 11:  # noqa: SIM102 - each is one branch more
        if rng.getrandbits(8) == 22:  # noqa: SIM102
            if rng.getrandbits(8) == 33:  # noqa: SIM102
                if rng.getrandbits(8) == 44:
                    raise Failure("a fault four draws deep")
