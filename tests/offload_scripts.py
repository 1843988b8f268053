"""What a process of its own does in a test: it forks, enters other namespaces, or is short of memory."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from arena.errors import AttachError, CapacityError, ForkedError
from arena.offload import SharedOffloadRegion
from arena.shm import capacity, membership

NOT_ALLOWED = 77


def region(engine_id: str, rank: int, backing: Any) -> SharedOffloadRegion:
    return SharedOffloadRegion(engine_id, 2, rank, 4 * 4096, 4096, backing=backing)


def forked(engine_id: str, how: str, backing: str) -> None:
    """Fork a child that ends in some way, and go on."""
    mine = region(engine_id, 0, backing)
    view = mine.create_next_worker_view(4096)
    child = os.fork()
    if child == 0:
        must_be_refused(lambda: mine.base_tensor, lambda: mine.create_next_worker_view(1), lambda: mine.is_creator)
        if how == "drop":
            del view, mine
        elif how == "cleanup":
            mine.cleanup()
        elif how == "sys.exit":
            sys.exit(0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    view.fill_(5)
    with region(engine_id, 1, backing) as joiner, mine:
        assert not joiner.is_creator
        assert int(joiner.base_tensor[0]) == 5


def must_be_refused(*uses: Callable[[], Any]) -> None:
    for use in uses:
        try:
            use()
        except ForkedError:
            continue
        os._exit(3)


def fork_and_die(engine_id: str, backing: str, at_step: str) -> None:
    """Leave a child of the moment after a step, and no parent."""

    def after_step(name: str) -> None:
        if name == at_step:
            if os.fork() == 0:
                print(os.getpid(), file=sys.stderr, flush=True)
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)

    membership.step_hook = after_step
    region(engine_id, 0, backing)


def join_from_another_namespace(engine_id: str, backing: str) -> None:
    if not enter_pid_namespace():
        os._exit(NOT_ALLOWED)
    try:
        with region(engine_id, 1, backing) as mine:
            assert not mine.is_creator
            assert int(mine.base_tensor[0]) == 9
            mine.create_next_worker_view(4096).fill_(4)
    except AttachError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def enter_pid_namespace() -> bool:
    """Go on as process 1 of a new PID namespace with its own /proc; the old process waits.  False: not allowed here."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_pid, new_mount, private = 0x20000000, 0x20000, (1 << 18) | (1 << 14)
    if libc.unshare(new_pid | new_mount) or libc.mount(None, b"/", None, private, None):
        return False
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return bool(libc.mount(b"proc", b"/proc", b"proc", 0, None) == 0)


def on_a_small_dev_shm(nbytes: int, function: Callable[..., None], *args: Any) -> None:
    """Go on with a /dev/shm of that size, which nobody else sees."""
    libc = ctypes.CDLL(None, use_errno=True)
    private = (1 << 18) | (1 << 14)
    if libc.unshare(0x20000) or libc.mount(None, b"/", None, private, None):
        os._exit(NOT_ALLOWED)
    if libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={nbytes}".encode()):
        os._exit(NOT_ALLOWED)
    function(*args)


def of_pages(name: str, rank: int | None, pages: int) -> SharedOffloadRegion:
    """Named memory of two workers, of that many pages, of which each takes half and None takes all."""
    return SharedOffloadRegion(name, pages // 2, rank, 2 * 4096, 4096, backing="shm")


def must_not_fit(name: str, rank: int | None, pages: int) -> None:
    try:
        of_pages(name, rank, pages)
    except CapacityError as error:
        print(error, file=sys.stderr, flush=True)
        return
    os._exit(4)


def too_large_at_once() -> None:
    must_not_fit("one", None, 5000)


def two_that_are_too_large_together() -> None:
    with of_pages("one", None, 2500):
        must_not_fit("other", None, 2500)
    with of_pages("other", None, 2500):  # when the first has gone, its pages have too
        pass


def pages_that_others_take_later() -> None:
    """All four pass the check, for at that moment there is room; the fourth finds none when it takes its pages."""
    with of_pages("one", 0, 2500), of_pages("other", 0, 2500), of_pages("one", 1, 2500):
        must_not_fit("other", 1, 2500)


def killed_with_pages(pages: int) -> None:
    """A process that had the region "one" and was killed."""
    if (child := os.fork()) == 0:
        held = of_pages("one", None, pages)
        assert held.is_creator
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert capacity.file_system_free_bytes() < pages * 4096


def one_that_a_dead_one_leaves_no_room_for() -> None:
    """Nobody has the dead one's bytes any more: they go before the next one's are counted, be it refused or not."""
    killed_with_pages(2500)
    with of_pages("one", None, 2500) as next_one:
        assert next_one.is_creator
    killed_with_pages(2500)
    must_not_fit("one", None, 5000)
    with of_pages("other", None, 2500):
        pass


def fail_with_a_region(engine_id: str, backing: str) -> None:
    mine = region(engine_id, 1, backing)
    mine.create_next_worker_view(4096).fill_(1)
    raise RuntimeError("mine")


def with_little_address_space(nbytes: int, engine_id: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (nbytes, nbytes))
    capacity.available_bytes = lambda: None
    try:
        SharedOffloadRegion(engine_id, nbytes >> 30, 0, 1 << 30, 4096)
    except CapacityError as error:
        print(error, file=sys.stderr, flush=True)
        return
    os._exit(4)
