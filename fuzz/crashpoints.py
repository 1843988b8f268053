"""A signal before every access to a shared word, of the writer, a reader and a joining reader; and sampled pairs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from random import Random
from typing import TypeVar

from fuzz.match import Match
from fuzz.scenario import Arm
from fuzz.session import Failure, Session
from fuzz.workers import Pool

ROLES = ("writer", "reader", "joiner")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "exception": signal.SIGUSR1}
READERS = (2, 4)
TRACE_EVERY = 20
"""One match of so many is logged and held to the model, which takes longer than the match."""

LANES = 4
"""Matches side by side.  A sweep ends when so many steps in a row were not reached: a match may vary from another."""

T = TypeVar("T")
R = TypeVar("R")


def crashpoints(session: Session) -> None:
    """A signal before step k of one process, for every k."""
    roles = session.options.get("role") or ROLES
    signals = session.options.get("signal") or tuple(SIGNALS)
    readers = session.options.get("readers") or READERS
    with Lanes() as lanes:
        for n_readers in readers:
            for name in signals:
                for role in roles:
                    _sweep(session, lanes, n_readers, role, name)


class Lanes:
    """Matches side by side: most of a match is waiting, for half a second where readers find their writer dead."""

    def __init__(self) -> None:
        self._pools = [Pool() for _ in range(LANES)]
        self._threads = ThreadPoolExecutor(LANES)

    def map(self, play: Callable[[Pool, T], R], cases: Sequence[T]) -> list[R]:
        """One case per lane, at once."""
        return list(self._threads.map(play, self._pools[: len(cases)], cases))

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for pool in self._pools:
            pool.__exit__()


def _sweep(session: Session, lanes: Lanes, n_readers: int, role: str, name: str) -> None:
    """Steps 0, 1, ... until they are not reached any more; every ``stride``-th, from a random one, if told."""

    def hit(pool: Pool, at: int) -> bool:
        try:
            reached = _play(pool, n_readers, [Arm(role, at % n_readers, at, SIGNALS[name])], session)
        except Failure as failure:
            raise Failure(str(failure), f"--readers {n_readers} --role {role} --signal {name} --at {at}") from None
        session.count("cases")
        if reached:
            session.count(f"{name} {role} {n_readers}")
            session.count("points")
        return reached

    if (only := session.options.get("at")) is not None:
        lanes.map(hit, [int(only)])
        return
    stride = int(session.options.get("stride", 1))
    at = session.rng(role, name, n_readers).randrange(stride)
    while (n := session.left(LANES)) and any(lanes.map(hit, [at + i * stride for i in range(n)])):
        at += n * stride


def _play(pool: Pool, n_readers: int, arms: list[Arm], session: Session) -> bool:
    """Plays a match; whether every arm was reached."""
    every = int(session.options.get("trace", TRACE_EVERY))  # an exception is no action of the model
    is_traced = bool(every) and arms[0].at % every == 0 and all(arm.signal != signal.SIGUSR1 for arm in arms)
    match = Match(pool, n_readers, arms, is_traced=is_traced)
    try:
        match.play()
    except Failure as failure:
        raise Failure(f"{n_readers} readers, {', '.join(map(str, arms))}: {failure}") from None
    session.count("matches")
    if is_traced:
        session.count("traces accepted")
    return match.reached == len(arms)


def crashpairs(session: Session) -> None:
    """Two processes of a match are hit, each before a step drawn at random."""
    with Lanes() as lanes, Pool() as pool:
        totals = {n: _steps_of(pool, n) for n in READERS}

        def hit(pool: Pool, case: int) -> None:
            n_readers, arms = _pair(session.rng(case), totals)
            try:
                reached = _play(pool, n_readers, arms, session)
            except Failure as failure:  # several are under way at once
                raise Failure(str(failure), f"--first {case} --runs 1") from None
            session.count("both reached" if reached else "not both reached")

        for batch in batched(session.cases(2000), LANES):
            lanes.map(hit, batch)


def _pair(rng: Random, totals: dict[int, dict[str, int]]) -> tuple[int, list[Arm]]:
    n_readers = rng.choice(READERS)
    arms: list[Arm] = []
    for rank in rng.sample(range(n_readers), 2):
        role = rng.choice(ROLES[1:] if any(arm.role == "writer" for arm in arms) else ROLES)
        name = rng.choice([*SIGNALS, "kill"])  # kills twice as often
        arms.append(Arm(role, rank, rng.randrange(totals[n_readers][role]), SIGNALS[name]))
    return n_readers, arms


def batched(cases: Iterator[int], n: int) -> Iterator[list[int]]:
    """Lists of ``n``, the last one shorter."""
    while batch := list(islice(cases, n)):
        yield batch


def _steps_of(pool: Pool, n_readers: int) -> dict[str, int]:
    """How many steps each role takes, as counted in a match that nothing hits."""
    never = 1 << 40
    return {
        role: Match(pool, n_readers, [Arm(role, 0, never, signal.SIGUSR1)]).play()[-1 if role == "writer" else 0].steps
        for role in ROLES
    }
