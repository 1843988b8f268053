"""The harness under test: one planted fault of each class must be seen, and be called what it is."""

from __future__ import annotations

import signal
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import patch

from fuzz import belongings, targets
from fuzz.match import Match
from fuzz.planted import ORACLES, SEEN_BY, UnderAnOracle
from fuzz.scenario import Arm
from fuzz.session import Failure, Session
from fuzz.workers import LIMIT_S, Pool

HANG_LIMIT_S = 5.0
ORACLE_RUNS = 50
"""Cases within which an oracle sees a fault that is always there."""


def canary(session: Session) -> None:
    """MUST FAIL (exit 1): planted hangs, leaks, wrong bytes, files, crashes, losses, objects, places, runs are all seen."""
    faults = [session.options["fault"]] if session.options.get("fault") else [*SEEN_BY]
    seen = []
    for fault in faults:
        if session.over():
            break
        failure = provoke(fault, session.seed)
        session.count("cases")
        session.count("planted")
        if failure is None or SEEN_BY[fault] not in str(failure):
            session.count(f"NOT SEEN: {fault} ({failure})")
        else:
            seen.append(f"{fault}: {failure}")
    if len(seen) == session.counts["planted"]:  # the harness works: so this target fails, as it must
        raise Failure("every planted fault was seen\n" + "\n".join(seen))


def provoke(fault: str, seed: int) -> Failure | None:
    """The failure that a planted fault ends in."""
    if fault in ORACLES:
        return _under(ORACLES[fault], seed)
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


def _under(oracle: UnderAnOracle, seed: int) -> Failure | None:
    right = resolve_name(oracle.where)
    with patch(oracle.where, oracle.faulty(right)):
        try:
            if oracle.target:
                targets.find(oracle.target)(Session(seed, runs=ORACLE_RUNS))
            else:
                with Pool() as pool:
                    Match(pool, 2, is_traced=True).play()
        except Failure as failure:
            return failure
    return None
