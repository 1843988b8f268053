"""What runs out and what a kernel lacks, one at a time, in a real process: a typed error or a fallback, and nothing left.

The table of ``docs/limits.md``, row by row.  A seccomp filter has the kernel itself refuse a call.
"""

from __future__ import annotations

import errno
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import limits_support
import pytest
from limits_support import LIMITS, LIVES, REFUSALS
from support import WATCHDOG_S

from arena.errors import CapacityError
from arena.shm import shortage

DOCUMENT = Path(__file__).parent.parent / "docs" / "limits.md"
NOTHING_KEPT = {"descriptors": 0, "mappings": 0, "grants": 0}
FITS = {"oversize": 1}  # the last message is larger than the arena
SHORT = {"no_memory": 1}

REFUSED_IN_ALL = {
    "no dontfork": "MADV_DONTFORK|cannot be mapped",
    "no wipeonfork": "MADV_WIPEONFORK|cannot be mapped",
    "size: no space": "No space left",
    "size: no memory": "Cannot allocate memory",
    "size: too large": "File too large",
    "map: no memory": "Cannot allocate memory",
}
"""Nobody can go on without; the creator says so."""

REFUSED = {
    ("no memfd", "memfd"): "backing='shm'",
    ("no memfd", "eager"): "backing='shm'",
    ("no memfd", "background"): "backing='shm'",
    ("no memfd", "cache"): "backing='shm'",
    ("no memfd", "region"): "backing='shm'",
    ("no seals", "memfd"): "backing='shm'",
    ("no seals", "eager"): "backing='shm'",
    ("no seals", "background"): "backing='shm'",
    ("no seals", "cache"): "backing='shm'",
    ("no seals", "region"): "backing='shm'",
    ("allocate: no space", "shm"): "No space left",
    ("directory: no space", "memfd"): "a directory for sockets",
    ("directory: no space", "shm"): "a directory for sockets",
    ("directory: no space", "eager"): "a directory for sockets",
    ("directory: no space", "background"): "a directory for sockets",
    ("directory: no space", "region"): "No space left",
    ("directory: no space", "region shm"): "No space left",
    ("populate out of memory", "eager"): "cannot populate",
    ("populate out of memory", "region"): "cannot be populated",
    ("populate out of memory", "region shm"): "cannot be populated",
    ("write: no space", "region"): "No space left",
    ("write: no space", "region shm"): "No space left",
    ("write: no memory", "region"): "Cannot allocate memory",
    ("write: no memory", "region shm"): "Cannot allocate memory",
    ("no threads", "memfd"): "takes 2 threads",
    ("no threads", "shm"): "takes 2 threads",
    ("no threads", "eager"): "takes 2 threads",
    ("no threads", "background"): "takes 2 threads",
    ("no threads", "region"): "no thread to populate",
    ("no threads", "region shm"): "no thread to populate",
}
for _kind in ("shm", "region", "region shm"):
    REFUSED["no locks", _kind] = "cannot be locked: No locks available"
    REFUSED["locks unknown", _kind] = "cannot be locked: Function not implemented"
for _kind in ("memfd", "eager", "background", "cache", "region"):
    REFUSED["memfd forbidden", _kind] = REFUSED["no memfd", _kind]
for _kind in ("eager", "region", "region shm"):
    REFUSED["populate a bad page", _kind] = REFUSED["populate out of memory", _kind]

NO_LOCKS = {"no locks", "locks unknown"}

READER_REFUSED = {"no dontfork", "map: no memory", "no threads"}
"""What a reader cannot join without."""


def lives(cases: list[tuple[str, int, str]]) -> list[dict[str, Any]]:
    """Each case in a process of its own; all of them from one interpreter."""
    command = [sys.executable, limits_support.__file__, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WATCHDOG_S, check=False)
    if "no seccomp filter here" in done.stdout:
        pytest.skip("no seccomp filter here: the kernel refuses to install one")
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(of: dict[str, Any]) -> dict[str, str]:
    """It lives, nothing is left, nothing untyped was raised and no byte is wrong; what became of each stage."""
    assert of.get("exit") == 0, of
    assert "raised" not in of, of
    what, _, kind = of["case"]
    entries = int(what in NO_LOCKS and kind.startswith("region"))  # only under its lock might it be removed
    assert (len(of["left"]), of["kept"]) == (entries, NOTHING_KEPT), of
    stages: dict[str, str] = of["stages"]
    assert not [text for text in stages.values() if text.startswith("wrong") or "Timeout" in text], of
    return stages


def expect(what: str, kind: str, stages: dict[str, str]) -> None:
    """The row of the table."""
    if what in REFUSED_IN_ALL or (what, kind) in REFUSED:
        text = REFUSED_IN_ALL.get(what) or REFUSED[what, kind]
        assert [*stages] == ["writer"], stages
        assert re.match(f"CapacityError: .*({text})", stages["writer"]), stages
        return
    expected = dict.fromkeys(stages, "ok")
    counts: dict[str, int] = {}
    if "loan" in stages:
        if what.startswith("populate") and kind != "eager":
            expected["loan"] = stages["loan"]
            assert stages["loan"].startswith("CapacityError: no memory for a loan of 20000 bytes"), stages
        else:
            expected["loan"] = "ok, {}"
        if what.startswith("write"):
            counts = dict(SHORT)
        expected["arena"] = f"ok, {counts}"
        expected["out of band"] = f"ok, {counts | FITS}"
    elif what.startswith("write"):
        expected["object"] = "uncached: no_memory"
    assert stages == expected
    assert len(stages) >= 3, stages


def run_all(cases: list[tuple[str, int, str]]) -> None:
    for of in lives(cases):
        what, _, kind = of["case"]
        expect(what, kind, check(of))


@pytest.mark.parametrize("kind", ["memfd", "region"])
def test_a_kernel_that_refuses(kind: str) -> None:
    run_all([(what, 0, kind) for what in REFUSALS])


@pytest.mark.deep
@pytest.mark.parametrize("kind", [kind for kind in LIVES if kind not in ("memfd", "region")])
def test_a_kernel_that_refuses_in_every_way_of_use(kind: str) -> None:
    run_all([(what, 0, kind) for what in REFUSALS])


def test_no_thread_to_populate_in_the_background() -> None:
    run_all([("no threads", 0, "background")])


@pytest.mark.parametrize("kind", ["memfd", "cache"])
def test_a_reader_whose_kernel_refuses(kind: str) -> None:
    """The writer is made before: the reader says so, or joins."""
    for of in lives([(f"reader: {what}", 0, kind) for what in sorted(READER_REFUSED | {"no pidfd", "no memfd"})]):
        stages, what = check(of), of["case"][0].removeprefix("reader: ")
        if what in READER_REFUSED and (what, kind) != ("no threads", "cache"):
            assert [*stages] == ["writer", "reader"], of
            assert stages["reader"].startswith("CapacityError: "), of
        else:
            assert all(text.startswith("ok") for text in stages.values()), of


def sweep(what: str, amounts: range, kind: str) -> None:
    """With little the writer is refused, with more the reader, or a message; with enough all goes well."""
    reached = []
    for of in lives([(what, amount, kind) for amount in amounts]):
        stages = check(of)
        *before, last = stages.values()
        assert all(text.startswith("ok") for text in before), of
        assert last.startswith(("ok", "CapacityError: ")), of
        reached.append((len(stages), last.startswith("ok")))
    assert not reached[0][1], "the least is too little"
    assert reached[-1][1], "the most is enough"
    assert reached == sorted(reached), "more never does worse"


def test_every_small_number_of_descriptors() -> None:
    """libzmq ends a process that has none for it: it is asked only when there are enough."""
    sweep("descriptors", range(3, 40), "memfd")


@pytest.mark.deep
@pytest.mark.parametrize("kind", ["shm", "cache", "region", "region shm"])
def test_every_small_number_of_descriptors_in_every_way_of_use(kind: str) -> None:
    sweep("descriptors", range(3, 40), kind)


def test_every_small_address_space() -> None:
    """By megabytes; libzmq ends a process whose threads find no room."""
    of_all = lives([("address space", kib, "memfd") for kib in range(0, 80 << 10, 4 << 10)])
    stages = [check(of) for of in of_all]
    assert all(text.startswith(("ok", "CapacityError: ")) for each in stages for text in each.values())
    assert [*stages[0]] == ["writer"]


def test_memory_that_must_not_be_locked_is_no_matter() -> None:
    """Nothing here locks pages; what a driver pins it accounts for itself."""
    for of in lives([("locked memory", 0, kind) for kind in ("memfd", "region")]):
        expect("locked memory", of["case"][2], check(of))


def test_a_limit_of_file_sizes_is_named() -> None:
    for of in lives([("file size", 0, "memfd"), ("file size", 1 << 20, "shm")]):
        assert "ulimit -f" in check(of)["writer"]


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(OSError, match="Input/output"), shortage.typed("a test"):
        raise OSError(errno.EIO, "Input/output error")
    with pytest.raises(CapacityError, match=r"a test cannot be made.*ulimit -n"), shortage.typed("a test"):
        raise OSError(errno.ENFILE, "Too many open files in system")


def test_the_table_has_every_row() -> None:
    text = DOCUMENT.read_text()
    assert not [what for what in [*REFUSALS, *LIMITS] if f"`{what}`" not in text]
