"""The memory orders of the C header: sufficient, none needlessly strong, and every weakened copy is rejected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spec import models
from spec.orders import command
from spec.orders_check import analysis, check_header, minimal
from spec.orders_header import HEADER, Access, accesses
from spec.orders_machine import (
    ACQ_REL,
    ACQUIRE,
    RELAXED,
    RELEASE,
    SEQ_CST,
    Instruction,
    Program,
    at_most,
    cas,
    fence,
    load,
    read,
    store,
    wait_for,
    write,
)
from spec.orders_parking import ADMIT_UNPARKS, CLOSED_WRITER, SHUTDOWN_READER, SHUTDOWN_WRITER
from spec.orders_programs import EDGES, EVICT_HELD, PROGRAMS
from spec.orders_search import candidates

TEXT = HEADER.read_text()
DECLARED = accesses(TEXT)


# ---- the machine, on litmus tests with known answers ---------------------------------------------


def thread(*instructions: Instruction) -> Callable[[], Generator[Instruction, int, Any]]:
    """A thread that returns the values of its loads."""

    def body() -> Generator[Instruction, int, Any]:
        loaded = []
        for instruction in instructions:
            value = yield instruction
            if instruction.kind == "load":
                loaded.append(value)
        return tuple(loaded)

    return body


def allows(outcome: tuple[Any, ...], *threads: Any, **orders: str) -> bool:
    """Some execution has this outcome, or a race, under these orders."""
    program = Program("litmus", "", (), threads, lambda *results: "seen" if results == outcome else None)
    return any(each.judge(orders, program.bad(*each.results)) for each in candidates(program))


STORE_BUFFER = (thread(store("x", 1, "st"), load("y", "ld")), thread(store("y", 1, "st"), load("x", "ld")))
FENCED = (
    thread(store("x", 1, "st"), fence("one"), load("y", "ld")),
    thread(store("y", 1, "st"), fence("two"), load("x", "ld")),
)
MESSAGE = (thread(write("d", 1), store("f", 1, "st")), thread(wait_for("f", bool, "ld"), read("d")))
IRIW = (
    thread(store("x", 1, "st")),
    thread(store("y", 1, "st")),
    thread(load("x", "ld"), load("y", "ld")),
    thread(load("y", "ld"), load("x", "ld")),
)
RELEASE_SEQUENCE = (
    thread(write("d", 1), store("f", 1, "st")),
    thread(cas("f", 1, 2, "rmw")),
    thread(wait_for("f", lambda value: value == 2, "ld"), read("d")),
)
LOAD_BUFFER = (thread(load("x", "ld"), store("y", 1, "st")), thread(load("y", "ld"), store("x", 1, "st")))
COHERENCE = (thread(store("x", 1, "st"), store("x", 2, "st")), thread(load("x", "ld"), load("x", "ld")))


@pytest.mark.parametrize(
    ("allowed", "outcome", "threads", "orders"),
    [
        (False, ((0,), (0,)), STORE_BUFFER, {"st": SEQ_CST, "ld": SEQ_CST}),
        (True, ((0,), (0,)), STORE_BUFFER, {"st": SEQ_CST, "ld": ACQUIRE}),
        (True, ((0,), (0,)), STORE_BUFFER, {"st": RELEASE, "ld": SEQ_CST}),
        (False, ((0,), (0,)), FENCED, {"st": RELAXED, "ld": RELAXED, "one": SEQ_CST, "two": SEQ_CST}),
        (True, ((0,), (0,)), FENCED, {"st": RELAXED, "ld": RELAXED, "one": SEQ_CST, "two": ACQ_REL}),
        (False, ((), (1, 0)), MESSAGE, {"st": RELEASE, "ld": ACQUIRE}),
        (True, ((), (1, 0)), MESSAGE, {"st": RELAXED, "ld": ACQUIRE}),
        (True, ((), (1, 0)), MESSAGE, {"st": RELEASE, "ld": RELAXED}),
        (False, ((), (), (1, 0), (1, 0)), IRIW, {"st": SEQ_CST, "ld": SEQ_CST}),
        (True, ((), (), (1, 0), (1, 0)), IRIW, {"st": RELEASE, "ld": ACQUIRE}),
        (False, ((), (), (2, 0)), RELEASE_SEQUENCE, {"st": RELEASE, "rmw": RELAXED, "ld": ACQUIRE}),
        (True, ((), (), (2, 0)), RELEASE_SEQUENCE, {"st": RELAXED, "rmw": ACQ_REL, "ld": ACQUIRE}),
        (False, ((1,), (1,)), LOAD_BUFFER, {"st": RELAXED, "ld": RELAXED}),
        (False, ((), (2, 1)), COHERENCE, {"st": RELAXED, "ld": RELAXED}),
        (True, ((), (1, 2)), COHERENCE, {"st": RELAXED, "ld": RELAXED}),
    ],
)
def test_litmus(allowed: bool, outcome: tuple[Any, ...], threads: tuple[Any, ...], orders: dict[str, str]) -> None:
    assert allows(outcome, *threads, **orders) is allowed


def test_a_write_may_slip_between_but_not_into_an_exchange() -> None:
    both = (thread(cas("x", 0, 1, "rmw")), thread(cas("x", 0, 1, "rmw")))
    program = Program("lock", "", (), both)
    stored = [sum(event.kind == "U" for event in each.events) for each in candidates(program)]
    assert stored == [1, 1]


def test_orders_are_compared_as_c11_does() -> None:
    assert at_most(RELAXED, RELEASE)
    assert at_most(RELEASE, ACQ_REL)
    assert at_most(ACQ_REL, SEQ_CST)
    assert not at_most(RELEASE, ACQUIRE)
    assert not at_most(SEQ_CST, ACQ_REL)


# ---- the header ----------------------------------------------------------------------------------


def test_header_declares_what_is_needed() -> None:
    report = check_header(TEXT)
    assert report.problems == []
    assert {each.site for each in report.sites if each.verdict != "exact"} == {"closed_store"}
    assert all(each.access.justification for each in report.sites if each.verdict != "exact")
    assert len(report.programs) == len(PROGRAMS)


def test_sizes() -> None:
    sizes = {program.name: (analysis(program).executions, analysis(program).assignments) for program in PROGRAMS}
    assert sizes == {
        "message slot": (5, 729),
        "ring": (3, 81),
        "parked reader": (9, 10125),
        "parked writer": (9, 10125),
        "parked writer, leave": (9, 10125),
        "parked writer, join": (9, 16875),
        "parked joiner": (9, 16875),
        "parked twice": (169, 1125),
        "shutdown of a reader": (8, 675),
        "shutdown of a writer": (8, 675),
        "closed by the writer": (8, 3375),
        "last record": (2, 81),
        "evict": (8, 729),
        "put and get": (10, 729),
        "admit": (3, 1215),
        "leave": (2, 81),
        "reclaim": (19, 135),
        "stamps": (11, 45),
    }


# Per program the orders, relaxed ones left out, of the only minimal set that lies below the header.
NEEDED = {
    "message slot": "published_store release, published_load acquire, done_store release, done_load acquire",
    "ring": "published_store release, published_load acquire, consumed_store release, consumed_load acquire",
    "parked reader": "fence_publish_to_parked seq_cst, fence_parked_to_published seq_cst",
    "parked writer": "fence_consumed_to_parked seq_cst, fence_parked_to_consumed seq_cst",
    "parked writer, leave": "fence_consumed_to_parked seq_cst, fence_parked_to_consumed seq_cst",
    "parked writer, join": "fence_consumed_to_parked seq_cst, fence_parked_to_consumed seq_cst",
    "parked joiner": "fence_publish_to_parked seq_cst, fence_parked_to_published seq_cst",
    "parked twice": "fence_publish_to_parked seq_cst, fence_parked_to_published seq_cst",
    "shutdown of a reader": "fence_closed_to_parked seq_cst, fence_parked_to_published seq_cst",
    "shutdown of a writer": "fence_closed_to_parked seq_cst, fence_parked_to_consumed seq_cst",
    "closed by the writer": "fence_closed_to_parked seq_cst, fence_parked_to_published seq_cst",
    "last record": "closed_store release, closed_load acquire",
    "evict": "gen_store[object.evict] seq_cst, hold_load seq_cst, hold_store[object.evict] seq_cst, "
    "gen_load[object.evict] seq_cst, hold_store[object.release] release",
    "put and get": "gen_store[object.publish] release, gen_load[object.evict] acquire",
    "admit": "member_cas release, member_load acquire",
    "leave": "member_store release, member_load acquire",
    "reclaim": "member_store release, member_cas acquire, hold_store[object.release] release",
    "stamps": "stamp_add acq_rel",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_minimal_set_below_the_header(program: Program) -> None:
    given = dict(program.given)
    below = [
        {site: order for site, order in each.items() if order != RELAXED and site not in given}
        for each in minimal(program)
        if all(at_most(order, DECLARED[site].order) for site, order in each.items())
    ]
    assert below == [dict(part.split(" ") for part in NEEDED[program.name].split(", "))]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_more_order_never_allows_more(program: Program) -> None:
    """The search for minimal sets leans on this."""
    looked_at = analysis(program)
    for enough in minimal(program):
        for site, choices in looked_at.choices.items():
            for stronger in choices:
                if at_most(enough[site], stronger):
                    assert looked_at.failure({**enough, site: stronger}) is None


@pytest.mark.parametrize("program", [SHUTDOWN_READER, SHUTDOWN_WRITER, CLOSED_WRITER], ids=lambda program: program.name)
def test_a_strong_store_does_not_replace_the_fence_of_shutdown(program: Program) -> None:
    orders = {site: access.order for site, access in DECLARED.items()}
    failure = analysis(program).failure({**orders, "closed_store": SEQ_CST, "fence_closed_to_parked": RELAXED})
    assert failure is not None
    assert "asleep" in failure[0]


def test_no_order_saves_an_admission_that_clears_the_park_word() -> None:
    assert minimal(ADMIT_UNPARKS) == []


def test_acquire_and_release_are_too_weak_for_eviction() -> None:
    orders = {site: access.order for site, access in DECLARED.items()}
    for site in ("gen_store[object.evict]", "hold_store[object.evict]"):
        assert analysis(EVICT_HELD).failure({**orders, site: RELEASE}) is not None
    for site in ("gen_load[object.evict]", "hold_load"):
        assert analysis(EVICT_HELD).failure({**orders, site: ACQUIRE}) is not None


# ---- copies of the header that must be rejected --------------------------------------------------


def with_order(access: Access, order: str) -> str:
    """The header with another order for one function, in its name and in its body."""
    renamed = access.function.removesuffix(access.order) + order
    start = TEXT.index(f" {access.function}(")
    end = TEXT.index("}", start)
    body = TEXT[start:end].replace(access.function, renamed)
    return TEXT[:start] + body.replace(f"memory_order_{access.order}", f"memory_order_{order}", 1) + TEXT[end:]


def weaker(site: str) -> list[str]:
    """The orders that the access could have and that promise less than the one it has."""
    possible = next(looked_at.possible[site] for looked_at in map(analysis, PROGRAMS) if site in looked_at.possible)
    declared = DECLARED[site].order
    return [order for order in possible if order != declared and at_most(order, declared)]


WEAKENED = [pytest.param(site, order, id=f"{site}-{order}") for site in DECLARED for order in weaker(site)]
# What the justified access could do with.
STILL_ENOUGH = {("closed_store", RELEASE)}


@pytest.mark.parametrize(("site", "order"), WEAKENED)
def test_weakened_copy_is_rejected(site: str, order: str) -> None:
    report = check_header(with_order(DECLARED[site], order))
    if (site, order) in STILL_ENOUGH:
        assert report.problems == []
        return
    failed = [each for each in report.programs if each.failure]
    assert failed
    assert any(each.program.name in problem for each in failed for problem in report.problems)
    assert all(site in analysis(each.program).choices for each in failed)


@pytest.mark.parametrize("site", DECLARED)
def test_a_name_that_lies_is_rejected(site: str) -> None:
    access = DECLARED[site]
    start = TEXT.index(f" {access.function}(")
    other = RELAXED if access.order != RELAXED else SEQ_CST
    lie = TEXT[start:].replace(f"memory_order_{access.order}", f"memory_order_{other}", 1)
    assert any(access.function in problem for problem in check_header(TEXT[:start] + lie).problems)


@pytest.mark.parametrize("site", ["published_load", "done_store", "gen_load[slot.gen]", "park_load"])
def test_a_needlessly_strong_copy_is_rejected(site: str) -> None:
    problems = check_header(with_order(DECLARED[site], SEQ_CST)).problems
    assert any("stronger than" in problem and "says no reason" in problem for problem in problems)


def test_a_reason_is_asked_for() -> None:
    problems = check_header(TEXT.replace("Stronger than needed:", "Strong:")).problems
    assert [problem.split(" ")[0] for problem in problems] == ["arena_closed_store_seq_cst"]


def test_a_program_about_an_edge_has_both_its_ends() -> None:
    """Between them the programs of an edge make every access of it; and no program is about anything else."""
    looks = {("member.claim", "member_load"), ("member.reclaim", "member_load")}  # the swap that follows orders
    for label, ends in EDGES.items():
        made = set().union(*(analysis(program).choices for program in PROGRAMS if label in program.labels))
        assert {(label, site) for site in ends - made} <= looks
    assert {label for program in PROGRAMS for label in program.labels} == set(EDGES)


def test_the_models_name_edges_of_the_header() -> None:
    """Each edge of the header is one of a step of a model too, but for the stamps of traces, which are no protocol."""
    named = {
        edge.strip("[]")
        for name in models.available()
        for each in models.load(name).model(models.load(name).Config()).actions
        for edge in each.edges
    }
    assert named == set(EDGES) - {"trace.stamp"}


LABEL = re.compile(r"\[([a-z]+(?:\.[a-z]+)?)\]")


@pytest.mark.parametrize("place", [match.span() for match in LABEL.finditer(TEXT)], ids=lambda place: TEXT[slice(*place)])
def test_a_label_that_is_missing_or_wrong_anywhere_is_rejected(place: tuple[int, int]) -> None:
    start, end = place
    for other in ("", *(f"[{label}]" for label in EDGES if f"[{label}]" != TEXT[start:end])):
        assert check_header(TEXT[:start] + other + TEXT[end:]).problems, other


def test_a_function_that_no_program_knows_is_rejected() -> None:
    extra = re.sub("arena_done_load_acquire", "arena_other_load_acquire", TEXT)
    problems = check_header(extra).problems
    assert "no program looks at arena_other_load_acquire" in problems
    assert "the header has no function for done_load" in problems


# ---- the command ---------------------------------------------------------------------------------


def test_command_reports_as_data() -> None:
    result = CliRunner().invoke(command, ["--json"])
    data = json.loads(result.output)
    assert result.exit_code == 0
    assert data["ok"]
    assert len(data["accesses"]) == len(DECLARED)


def test_command_tells_the_story_of_a_weak_header(tmp_path: Path) -> None:
    header = tmp_path / "weak.h"
    header.write_text(with_order(DECLARED["done_store"], RELAXED))
    result = CliRunner().invoke(command, ["--header", str(header)])
    assert result.exit_code == 1
    assert "race on payload" in result.output
    assert "thread 1: done_store done <- 1" in result.output
