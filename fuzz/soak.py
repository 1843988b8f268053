"""Everything at once, for as long as told: writers and readers that are killed, stopped, shut down and come back."""

from __future__ import annotations

import signal
import time
from random import Random

from arena import Handle
from fuzz import belongings, soak_report
from fuzz.session import Failure, Session, expect
from fuzz.soak_ends import Pulse, Reading, read, write
from fuzz.soak_report import Sample
from fuzz.workers import LIMIT_S, Pool, Worker, wait_any

EVENT_S = 0.15
"""Between two events, on average, beside what they take themselves."""

STOP_MAX_S = 0.1
SAMPLES_MIN = 5


def soak(session: Session) -> None:
    """Two queues under load with kills, rejoins, stops and shutdowns; memory and throughput over time must be flat.

    In the one the writer and a reader live through the whole run, so that what they have can be held to be flat; in the
    other the writer is killed, stopped and shut down, too.
    """
    if session.seconds is None and session.runs is None:
        session.seconds = 30.0
    n_readers = int(session.options.get("readers", 3))
    with Pool() as pool:
        samples = _Soak(session, pool, n_readers).run()
        expect(not belongings.files_of(pool.pids), f"files left: {belongings.files_of(pool.pids)}")
    soak_report.show(samples, session.options.get("output"))
    soak_report.judge(session, samples)


class _Group:
    """A queue: a writer's process and its readers'."""

    def __init__(self, session: Session, pool: Pool, n_readers: int, rng: Random) -> None:
        self._session, self._pool, self._n_readers, self._rng = session, pool, n_readers, rng
        self.readers: dict[int, Worker] = {}
        self.kills = 0  # of readers, since the writer started
        self.pulse = Pulse()
        self._sent_before = 0  # by earlier writers
        self.reign()

    def reign(self) -> None:
        """A new writer, whose readers are the old one's, as far as they live."""
        self._sent_before += self.pulse.sent
        self.pulse = Pulse()
        self.kills = 0
        self.writer = self._pool.take()
        self.writer.start(write, self._n_readers)
        _, self.handle = self.writer.next()
        for rank in range(self._n_readers):
            self.start(rank)

    @property
    def sent(self) -> int:
        return self._sent_before + self.pulse.sent

    def start(self, rank: int) -> None:
        """A reader joins: in the process that had the rank, or in a new one."""
        worker = self.readers[rank] if rank in self.readers else self._pool.take()
        handle: Handle = self.handle
        worker.start(read, handle, rank, self._rng.randrange(2**32))
        self.readers[rank] = worker

    def workers(self) -> list[Worker]:
        return [self.writer, *self.readers.values()]

    def listen(self, worker: Worker) -> bool:
        """Whether it was a writer's pulse; a reader has nothing to say before its end."""
        if worker is self.writer:
            kind, what = worker.next()
            expect(kind == "said", f"a writer ended by itself: {what}")
            self.pulse = what
            return True
        raise Failure(f"a reader ended by itself: {worker.result()}")

    # ---- what happens to readers ------------------------------------------------------------------------------

    def kill(self, rank: int) -> None:
        worker = self.readers.pop(rank)
        worker.signal(signal.SIGKILL)
        self._pool.end(worker)
        self.kills += 1
        self.start(rank)

    def leave_and_rejoin(self, rank: int) -> None:
        """Comes back at once, as the same process."""
        self.readers[rank].tell("leave")
        self._result(rank, {"left"})
        self.start(rank)

    def _result(self, rank: int, ends: set[str]) -> Reading:
        reading: Reading = self.readers[rank].result()
        expect(reading.ended in ends, f"reader {rank} ended with {reading.ended!r}, not one of {sorted(ends)}")
        expect(not reading.left, f"reader {rank} still has {reading.left}")
        return reading

    # ---- what happens to the writer ---------------------------------------------------------------------------

    def kill_writer(self) -> None:
        """Its readers say so, and go on with the next one."""
        self.writer.signal(signal.SIGKILL)
        self._pool.end(self.writer)
        for rank in self.readers:
            self._result(rank, {"WriterDied", "AttachError"})
        self.reign()

    def shut_down(self) -> None:
        """In the middle of everything: who was a member gets every message, and is then told."""
        self._end("shutdown", {"Cancelled", "WriterDied", "AttachError"})
        self.reign()

    def finish(self) -> None:
        """All readers get what is left, and drop it: everything comes back."""
        self._end("end", {"end", "Cancelled"})
        for worker in self.readers.values():
            self._pool.give_back(worker)

    def _end(self, how: str, ends: set[str]) -> None:
        self.writer.tell(how)
        final: Pulse = self.writer.result()
        self._pool.give_back(self.writer)
        expect(not final.left, f"a writer still has {final.left}")
        expect(final.deaths <= self.kills, f"{final.deaths} deaths were seen, {self.kills} readers were killed")
        for rank in self.readers:
            last = self._result(rank, ends).last
            expect(last in (-1, final.sent - 1), f"reader {rank} saw {last} last, {final.sent - 1} was sent last")
        self.pulse = Pulse(sent=final.sent)


class _Soak:
    def __init__(self, session: Session, pool: Pool, n_readers: int) -> None:
        self._session, self._pool, self._n_readers = session, pool, n_readers
        self._rng = session.rng("events")
        self._kills = 0
        self._samples: list[Sample] = []
        self._started = self._sampled = time.monotonic()
        self._steady, self._mortal = (_Group(session, pool, n_readers, self._rng) for _ in range(2))

    def run(self) -> list[Sample]:
        due = time.monotonic()
        while not self._session.over() or len(self._samples) < SAMPLES_MIN:
            self._listen(max(0.0, due - time.monotonic()))
            if time.monotonic() >= due:
                if not self._session.over():
                    self._event()
                    self._session.count("cases")
                self._pool.fork_ahead()
                due = time.monotonic() + self._rng.random() * 2 * EVENT_S
        for group in (self._steady, self._mortal):
            group.finish()
        return self._samples

    def _listen(self, timeout_s: float) -> None:
        groups = {worker: group for group in (self._steady, self._mortal) for worker in group.workers()}
        for worker in wait_any([*groups], timeout_s):
            before = self._steady.pulse
            if groups[worker].listen(worker) and before.sent and self._steady.pulse is not before:
                self._sample(before, self._steady.pulse)
        expect(time.monotonic() - self._sampled < LIMIT_S, f"no sign of the writer for {LIMIT_S:.0f} s")

    # ---- events -----------------------------------------------------------------------------------------------

    def _event(self) -> None:
        """To a random process, except that nothing but stops happens to the writer and the reader that live on."""
        if self._rng.random() < 0.08:
            self._happens_to_writer(self._mortal)
            return
        group = self._rng.choice([self._steady, self._mortal])
        rank = self._rng.randrange(self._n_readers)
        chance = self._rng.random()
        if chance < 0.25 or (group is self._steady and rank == 0):
            self._stop(group.readers[rank])
        elif chance < 0.9:
            group.kill(rank)
            self._killed("kills")
        else:
            group.leave_and_rejoin(rank)
            self._session.count("leaves and rejoins")

    def _happens_to_writer(self, group: _Group) -> None:
        chance = self._rng.random()
        if chance < 0.4:
            group.kill_writer()
            self._killed("kills of the writer")
        elif chance < 0.7:
            group.shut_down()
            self._session.count("shutdowns of the writer")
        else:
            self._stop(group.writer)

    def _stop(self, worker: Worker) -> None:
        worker.signal(signal.SIGSTOP)
        time.sleep(self._rng.random() * STOP_MAX_S)
        worker.signal(signal.SIGCONT)
        self._session.count("stops")

    def _killed(self, what: str) -> None:
        self._kills += 1
        self._session.count(what)

    # ---- samples ----------------------------------------------------------------------------------------------

    def _sample(self, before: Pulse, pulse: Pulse) -> None:
        sent = pulse.sent - before.sent
        own = {worker: belongings.private_bytes(worker.pid) / 2**20 for g in self._groups() for worker in g.workers()}
        writer, reader = self._steady.writer, self._steady.readers[0]
        self._samples.append(
            Sample(
                seconds=pulse.at_s - self._started,
                messages_per_s=sent / (pulse.at_s - before.at_s),
                writer_us=1e6 * (pulse.cpu_s - before.cpu_s) / max(1, sent),
                writer_mib=own[writer],
                reader_mib=own[reader],
                others_mib=sum(mib for worker, mib in own.items() if worker not in (writer, reader)),
                arena_mib=(pulse.arena_bytes + self._mortal.pulse.arena_bytes) / 2**20,
                slots_busy=pulse.slots_busy,
                descriptors=pulse.descriptors,
                kills=self._kills,
            )
        )
        self._sampled = time.monotonic()
        self._session.counts["messages"] = self._steady.sent + self._mortal.sent
        self._session.count("samples")

    def _groups(self) -> list[_Group]:
        return [self._steady, self._mortal]
