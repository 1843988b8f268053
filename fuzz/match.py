"""A match: one writer and its readers in processes of their own, some of which a signal hits; then what must still hold."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from arena import Handle
from fuzz import belongings, scenario, traces
from fuzz.scenario import Arm, Report
from fuzz.session import Failure, expect
from fuzz.workers import LIMIT_S, Ended, Pool, Worker, wait_any

PAUSE_S = 0.005
"""How long a stopped process stays stopped at least, whatever the others do meanwhile."""


@dataclass(eq=False)
class _Player:
    worker: Worker
    rank: int  # -1: the writer
    arm: Arm | None
    is_original: bool = True
    said: str = ""
    report: Report | None = None
    killed: bool = False
    stopped_at: float = 0.0
    resumed: bool = False

    def was_hit(self) -> bool:
        return self.arm is not None and (self.report is None or self.report.steps > self.arm.at)

    def may_come_late(self) -> bool:
        """Whether it has to join a second time: its first attempt may have been admitted, and left, by now."""
        is_interrupted = self.arm is not None and self.arm.role == "joiner" and self.arm.signal == signal.SIGUSR1
        return is_interrupted and (not self.said or self.report is not None)

    def is_over(self) -> bool:
        return self.killed or self.report is not None


class Match:
    """One match.

    Args:
        pool: where the processes come from.
        n_readers: how many.
        arms: at most one per process.
        fault: planted in reader 0, for the canary.
        limit_s: what gives no sign for so long hangs.
        is_traced: every action is logged, and the log must be a behaviour of the model.
    """

    def __init__(
        self,
        pool: Pool,
        n_readers: int,
        arms: Sequence[Arm] = (),
        *,
        fault: str = "",
        limit_s: float = LIMIT_S,
        is_traced: bool = False,
    ) -> None:
        self._is_traced = is_traced
        self._log_to = ""
        self._fault = fault
        self._limit_s = limit_s
        self._pool = pool
        self._n_readers = n_readers
        self._arms = arms
        self._handle: Handle | None = None
        self._players: list[_Player] = []
        self._went_on = False
        self.reached = 0  # arms that took effect

    def play(self) -> dict[int, Report]:
        """Plays to the end; the reports of those who lived, by rank, -1 being the writer's; see ``reached``, too.

        Raises:
            Failure: something does not hold.
        """
        try:
            if not self._is_traced:
                return self._play()
            with traces.directory() as self._log_to:
                reports = self._play()
                traces.check(self._log_to)
            return reports
        except BaseException:
            for player in self._players:  # whatever they do, it ends here
                self._pool.end(player.worker)
            raise

    def _play(self) -> dict[int, Report]:
        self._add(-1, scenario.write, self._n_readers)
        if any(arm.signal == signal.SIGKILL for arm in self._arms):
            self._pool.fork_ahead()
        last_sign = time.monotonic()
        stops = any(arm.signal == signal.SIGSTOP for arm in self._arms)
        while not all(player.is_over() for player in self._players):
            waiting = [player for player in self._players if not player.is_over()]
            ready = wait_any([player.worker for player in waiting], 0.002 if stops else 1.0)
            for player in waiting:
                if player.worker in ready:
                    self._listen(player)
                    last_sign = time.monotonic()
                elif stops and self._resume(player):
                    last_sign = time.monotonic()
            self._let_go_on()
            expect(time.monotonic() - last_sign < self._limit_s, f"a match hangs: {self._who_waits()}")
        return self._finish()

    def _add(self, rank: int, function: Any, *arguments: Any, is_original: bool = True) -> None:
        armed = [arm for arm in self._arms if (arm.role == "writer") == (rank < 0) and (rank < 0 or arm.rank == rank)]
        arm = armed[0] if armed and is_original else None
        player = _Player(self._pool.take(), rank, arm, is_original)
        self._players.append(player)
        if self._log_to:
            player.worker.run(traces.log_to, self._log_to)
        player.worker.start(function, *arguments, arm, *([self._fault] if rank == 0 and is_original else []))

    @property
    def _writer(self) -> _Player:
        return self._players[0]

    def _listen(self, player: _Player) -> None:
        try:
            kind, what = player.worker.next()
        except Ended as ended:
            self._ended(player, ended)
            return
        if kind == "returned":
            player.report = what
        elif player is self._writer and self._handle is None:
            self._handle = what
            for rank in range(self._n_readers):
                self._add(rank, scenario.read, what, rank)
        else:
            player.said = what

    def _ended(self, player: _Player, ended: Ended) -> None:
        is_meant = player.arm is not None and ended.exit_code == -player.arm.signal
        expect(is_meant, f"{self._name(player)} died: {ended}")
        player.killed = True
        if player.rank >= 0 and not self._writer.is_over():
            self._add(player.rank, scenario.read, self._handle, player.rank, is_original=False)

    def _resume(self, player: _Player) -> bool:
        """Whether a stopped process has been sent on: the others must have got on without it."""
        if player.resumed or player.arm is None or player.arm.signal != signal.SIGSTOP or not player.worker.is_stopped():
            return False
        now = time.monotonic()
        player.stopped_at = player.stopped_at or now
        can_get_on = player.rank >= 0 and player.said == "joined" and not self._writer.is_over()
        if now - player.stopped_at < PAUSE_S or (can_get_on and self._writer.said != "half"):
            return False
        player.worker.signal(signal.SIGCONT)
        player.resumed = True
        return True

    def _let_go_on(self) -> None:
        """The writer's second half begins when every reader that began has seen the first, or is dead."""
        if self._went_on or self._writer.said != "half" or self._writer.is_over():
            return
        if all(p.said == "half" or p.is_over() or p.may_come_late() for p in self._players[1:] if p.is_original):
            self._writer.worker.tell("go on")
            self._went_on = True

    # ---- the end ----------------------------------------------------------------------------------------------

    def _finish(self) -> dict[int, Report]:
        for player in self._players:
            if not player.killed:
                self._judge(player)
        reports = {player.rank: player.report for player in self._players if player.report is not None}
        self.reached = sum(player.was_hit() for player in self._players)
        dead = [player.worker.pid for player in self._players if player.killed]
        for player in self._players:
            if player.killed:
                self._pool.end(player.worker)
            else:
                if self._log_to:
                    player.worker.run(traces.log_to, "")
                self._pool.give_back(player.worker)
        self._players = []
        expect(not belongings.files_of(dead), f"files left by the dead: {belongings.files_of(dead)}")
        return reports

    def _judge(self, player: _Player) -> None:
        report, name = player.report, self._name(player)
        if report is None:
            raise Failure(f"{name} gave no report")
        expect(not report.wrong, f"{name}: {report.wrong}")
        expect(not report.left, f"{name} still has {report.left} after its end")
        if player is self._writer:
            killed = sum(1 for other in self._players[1:] if other.killed)
            expect(report.deaths <= killed, f"the writer saw {report.deaths} deaths, but {killed} readers were killed")
        else:
            self._judge_numbers(player, report, name)

    def _judge_numbers(self, player: _Player, report: Report, name: str) -> None:
        writer = self._writer.report
        ends = {"end"} if writer is not None else {"end", "WriterDied", "Cancelled", "AttachError"}
        if not player.is_original:  # it may have come too late
            ends |= {"Cancelled", "WriterDied", "AttachError"}
        expect(report.ended in ends, f"{name} ended with {report.ended!r}, not one of {sorted(ends)}")
        numbers = report.numbers
        expect(numbers == sorted(set(numbers)), f"{name} got messages twice or out of order: {numbers}")
        if writer is not None:
            stray = set(numbers) - set(writer.numbers) - set(writer.doubtful)
            expect(not stray, f"{name} got messages that were not sent: {sorted(stray)}")
        sent = range(numbers[-1] + 1) if writer is None and numbers else writer.numbers if writer is not None else []
        if numbers and report.ended == "end":  # an end that was in doubt may have been followed by another
            sent = [number for number in sent if number <= numbers[-1]]
        if numbers and (not player.is_original or player.may_come_late()):
            sent = [number for number in sent if number >= numbers[0]]
        if player.is_original or report.ended == "end":
            missing = set(sent) - set(numbers) - set(self._doubtful())
            expect(len(missing) <= report.interrupted, f"{name} missed messages {sorted(missing)}")

    def _doubtful(self) -> list[int]:
        return self._writer.report.doubtful if self._writer.report is not None else []

    def _name(self, player: _Player) -> str:
        name = "the writer" if player.rank < 0 else f"reader {player.rank}"
        return name if player.is_original else f"the successor of {name}"

    def _who_waits(self) -> str:
        return ", ".join(
            f"{self._name(p)} (pid {p.worker.pid}, said {p.said!r})" for p in self._players if not p.is_over()
        )
