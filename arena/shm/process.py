"""Processes as facts: who one is, and whether it has ended."""

from __future__ import annotations

import os
import resource
import select
from dataclasses import dataclass
from functools import cache

from arena.errors import CapacityError
from arena.shm.shortage import SHORTAGES


def start_time(pid: int) -> int | None:
    """Start time in clock ticks since boot (field 22 of proc(5) ``stat``); None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(text[text.rindex(b")") + 2 :].split()[19])


def own_start_time() -> int:
    """This process's start time."""
    start = start_time(os.getpid())
    if start is None:
        raise OSError("/proc/self/stat cannot be read: arena needs a mounted /proc")
    return start


@cache
def boot_id() -> str:
    """Differs from machine to machine and from boot to boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "unknown"


_MACHINES_TIME = 0xEFFFFFFA  # the inode of the first time namespace: PROC_TIME_INIT_INO of the kernel


def pid_namespace() -> int:
    """Equal in processes to which a pid and its start time mean the same.

    The inode of the PID namespace; in a time namespace, which shifts all start times, with that one's above it.
    """
    try:
        time = os.stat("/proc/self/ns/time").st_ino
    except FileNotFoundError:  # Linux before 5.6 has none
        time = _MACHINES_TIME
    return os.stat("/proc/self/ns/pid").st_ino | (time ^ _MACHINES_TIME) << 32


def _pid_behind(descriptor: int) -> int | None:
    """The process of a pidfd, -1 once it has been waited for (proc(5), fdinfo); None: it is no pidfd, or was closed."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", "rb") as file:
            return next((int(line[4:]) for line in file if line.startswith(b"Pid:")), None)
    except FileNotFoundError:
        return None
    except OSError:  # no descriptor to look with
        return _WAITED_FOR


def _open_pidfd(pid: int, start: int) -> int:
    """A descriptor of the process, or what stands for none."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return _DEAD
    except AttributeError:
        return _UNWATCHED
    watched = _UNWATCHED
    try:
        found = start_time(pid)
        if found == start:
            watched = pidfd
        elif found is not None or _is_readable(pidfd):  # else /proc hides it (hidepid): it lives, and may be that one
            watched = _DEAD
    finally:
        if watched != pidfd:
            os.close(pidfd)
    return watched


def _is_readable(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _is_taken(pid: int) -> bool:
    """Whether there is a process of that number, living or not waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True


@dataclass
class Peer:
    """A watched process.  Only a readable pidfd proves its death: that is the last thing the kernel does in an exit.

    Without pidfd (kernels before 5.3, or a seccomp filter) a death is only suspected, and ``is_dead`` stays False.  So it
    does where the application has closed the descriptor, which may be another file's by now, until the process has been
    waited for.
    """

    pid: int
    start: int
    pidfd: int

    @staticmethod
    def watch(pid: int, start: int) -> Peer:
        """Watches a process; one that has ended, or whose pid is another's by now, is dead from the start.

        A process of another PID namespace (``pid`` 0) cannot be watched.

        Raises:
            CapacityError: no descriptor is left, or no memory: a death would never be seen.
        """
        if pid == 0:
            return Peer(pid, start, _UNWATCHED)
        try:
            return Peer(pid, start, _open_pidfd(pid, start))
        except OSError as error:
            if error.errno not in SHORTAGES:
                return Peer(pid, start, _UNWATCHED)
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            raise CapacityError(
                f"process {pid} cannot be watched for its death: {error.strerror} (errno {error.errno}, RLIMIT_NOFILE "
                f"{limit}): close descriptors, or raise ulimit -n"
            ) from error

    def is_dead(self) -> bool:
        """Whether the process has ended, for a fact."""
        pidfd = self.pidfd  # read once: another thread may close it
        if pidfd < 0:
            return pidfd == _DEAD
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        seen = poll.poll(0)
        if not seen:
            return False
        is_ours = bool(seen[0][1] & select.POLLIN) and _pid_behind(pidfd) == self.pid
        return is_ours or self._is_absent()

    def _is_absent(self) -> bool:
        """Whether the process is gone, and its parent has waited for it."""
        try:
            found = start_time(self.pid)
        except OSError:  # no descriptor to look with
            found = None
        if found is None:  # nor is it to be seen where /proc hides it: proved only where nobody has the pid
            return not _is_taken(self.pid)
        return found != self.start

    def is_suspect(self) -> bool:
        """Whether the process seems to have ended, where that cannot be proved."""
        if self.pidfd != _UNWATCHED or self.pid == 0:
            return False
        return self._is_absent()

    def has_gone(self) -> bool:
        """Whether the process has ended, proved or not: enough for those that only wait for it, and free nothing by it."""
        return self.is_dead() or self.is_suspect()

    def how_it_ended(self) -> str:
        """``exit 1``, ``signal 9`` for a child of this process that nobody has waited for; else ``unknown``, and why."""
        if self.pidfd < 0:
            return _UNKNOWN
        try:
            info = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:
            return _UNKNOWN
        if info is None:
            return _UNKNOWN
        return f"exit {info.si_status}" if info.si_code == os.CLD_EXITED else f"signal {info.si_status}"

    def close(self) -> None:
        if self.pidfd >= 0 and _pid_behind(self.pidfd) in (self.pid, _WAITED_FOR):
            os.close(self.pidfd)
        self.pidfd = _UNWATCHED if self.pidfd != _DEAD else _DEAD


_UNKNOWN = "unknown how, as it is no child of this process or somebody has waited for it"
_WAITED_FOR = -1
_DEAD = -1
_UNWATCHED = -2
