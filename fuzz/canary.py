"""The harness under test: one planted fault of each class must be seen, and be called what it is."""

from __future__ import annotations

import signal
from pathlib import Path

from fuzz import belongings
from fuzz.match import Match
from fuzz.planted import FAULTS
from fuzz.scenario import Arm
from fuzz.session import Failure, Session
from fuzz.workers import LIMIT_S, Pool

HANG_LIMIT_S = 5.0


def canary(session: Session) -> None:
    """MUST FAIL (exit 1): planted hangs, leaks, wrong bytes, left files, crashes and losses are all seen."""
    faults = [session.options["fault"]] if session.options.get("fault") else [*FAULTS]
    seen = []
    for fault in faults:
        if session.over():
            break
        failure = provoke(fault)
        session.count("cases")
        session.count("planted")
        if failure is None or FAULTS[fault] not in str(failure):
            session.count(f"NOT SEEN: {fault} ({failure})")
        else:
            seen.append(f"{fault}: {failure}")
    if len(seen) == session.counts["planted"]:  # the harness works: so this target fails, as it must
        raise Failure("every planted fault was seen\n" + "\n".join(seen))


def provoke(fault: str) -> Failure | None:
    """A match with a planted fault, and the failure that it ends in."""
    arms = [Arm("reader", 0, 1 << 40, signal.SIGKILL)] if fault == "left file" else []  # its death is expected
    with Pool() as pool:
        try:
            limit_s = HANG_LIMIT_S if fault == "hang" else LIMIT_S
            Match(pool, 2, arms, fault=fault, limit_s=limit_s).play()
        except Failure as failure:
            return failure
        finally:
            for path in belongings.files_of(pool.pids):
                Path(path).unlink()
    return None
