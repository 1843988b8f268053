"""Which orders does each program need, and does the header declare exactly those?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import prod

from spec.orders_header import Access, accesses, declared
from spec.orders_machine import (
    ACQUIRE,
    ORDERS,
    RELAXED,
    RELEASE,
    SEQ_CST,
    Assignment,
    Candidate,
    Program,
    at_most,
)
from spec.orders_programs import EDGES, PROGRAMS
from spec.orders_search import candidates

CHOICES = {"W": (RELAXED, RELEASE, SEQ_CST), "R": (RELAXED, ACQUIRE, SEQ_CST), "U": ORDERS, "F": ORDERS}


Suspect = tuple[Candidate, "str | None"]
"""An execution that is wrong with the weakest orders, and what its threads' results say about it."""


class Analysis:
    """The executions of one program, and what each assignment of orders makes of them."""

    def __init__(self, program: Program) -> None:
        self.program = program
        every = candidates(program)
        self.executions = len(every)
        kinds: dict[str, str] = {}
        for event in (event for each in every for event in each.events if event.site):
            kinds[event.site] = "U" if "U" in (event.kind, kinds.get(event.site)) else event.kind
        self.possible = {site: CHOICES[kind] for site, kind in kinds.items()}
        self.choices = {**self.possible, **{site: (order,) for site, order in program.given}}
        # Stronger orders only forbid: what is harmless with the weakest orders need not be looked at again.
        weakest = {site: choices[0] for site, choices in self.choices.items()}
        judged = [(each, program.bad(*each.results)) for each in every]
        self._suspects: list[Suspect] = [(each, words) for each, words in judged if each.judge(weakest, words)]

    @property
    def assignments(self) -> int:
        """How many assignments of orders there are."""
        return prod(len(choices) for choices in self.choices.values())

    def failure(self, orders: Assignment) -> tuple[str, Candidate] | None:
        """What goes wrong under these orders, with an execution that shows it; None if they are sufficient."""
        for candidate, words in self._suspects:
            wrong = candidate.judge(orders, words)
            if wrong:
                return wrong, candidate
        return None

    def minimal(self) -> list[dict[str, str]]:
        """Every sufficient assignment that no weaker one could replace; all assignments are decided.

        They are taken from weak to strong, so whatever is at least as strong as one already found is sufficient and
        not minimal: more order never allows more executions.
        """
        every = sorted(product(*self.choices.values()), key=lambda orders: sum(map(ORDERS.index, orders)))
        likely = list(self._suspects)
        found: list[dict[str, str]] = []
        for orders in every:
            assignment = dict(zip(self.choices, orders, strict=True))
            if any(_covers(assignment, each) for each in found):
                continue
            guilty = next((each for each in likely if each[0].judge(assignment, each[1])), None)
            if guilty is None:
                found.append(assignment)
            else:  # the next assignment most likely fails in the same execution
                likely.remove(guilty)
                likely.insert(0, guilty)
        return found


def _covers(stronger: Assignment, weaker: Assignment) -> bool:
    return all(at_most(order, stronger[site]) for site, order in weaker.items())


@cache
def analysis(program: Program) -> Analysis:
    """The analysis of a program, made once."""
    return Analysis(program)


@cache
def minimal(program: Program) -> list[dict[str, str]]:
    """The minimal sufficient assignments of a program, found once."""
    return analysis(program).minimal()


@dataclass
class SiteReport:
    """One access: what the header declares and what the programs need."""

    site: str
    access: Access
    needed: str

    @property
    def verdict(self) -> str:
        """exact, justified or needless; a declaration that is too weak is a problem of a program instead."""
        if self.access.order == self.needed:
            return "exact"
        return "justified" if self.access.justification else "needless"


@dataclass
class ProgramReport:
    """One program: its size, its minimal assignments, and what fails with the header's orders."""

    program: Program
    executions: int
    assignments: int
    minimal: list[dict[str, str]]
    failure: tuple[str, Candidate] | None


@dataclass
class Report:
    """Everything that was found out about a header."""

    sites: list[SiteReport] = field(default_factory=list)
    programs: list[ProgramReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """The header declares what is needed, no more without a reason, and nothing that no program looks at."""
        return not self.problems


def check_header(text: str, programs: tuple[Program, ...] = PROGRAMS) -> Report:
    """Holds a header's text against all programs."""
    report = Report()
    header = accesses(text)
    orders = {site: access.order for site, access in header.items()}
    report.problems += _problems_of_text(text, header, programs)
    needed = dict.fromkeys(header, RELAXED)
    for program in programs:
        looked_at = analysis(program)
        missing = [site for site in looked_at.choices if site not in header]
        if missing:
            continue
        failure = looked_at.failure(orders)
        report.programs.append(
            ProgramReport(program, looked_at.executions, looked_at.assignments, minimal(program), failure)
        )
        if failure:
            report.problems.append(f"{program.name}: {failure[0]}")
            continue
        for site, order in _lowest_below(orders, minimal(program), dict(program.given)).items():
            needed[site] = _join(needed[site], order)
    report.sites = [SiteReport(site, access, needed[site]) for site, access in header.items()]
    if not any(each.failure for each in report.programs):
        report.problems += [
            f"{each.access.function} is stronger than {each.needed}, which is enough, and says no reason"
            for each in report.sites
            if each.verdict == "needless"
        ]
    return report


def _lowest_below(orders: Assignment, found: list[dict[str, str]], given: Assignment) -> dict[str, str]:
    """The minimal set that a sufficient header contains; what another program decides is left to that one."""
    decided = [{site: order for site, order in each.items() if site not in given} for each in found]
    below = [each for each in decided if _covers(orders, each)]
    return min(below, key=lambda each: sum(map(ORDERS.index, each.values())))


def _problems_of_text(text: str, header: Mapping[str, Access], programs: tuple[Program, ...]) -> Iterator[str]:
    if declared(text) != len(header):
        yield f"the header defines {declared(text)} functions, of which {len(header)} are understood"
    used: set[str] = set()
    for program in programs:
        for site, possible in analysis(program).possible.items():
            used.add(site)
            if site in header and header[site].order not in possible:
                yield f"{header[site].function}: this access can only be {', '.join(possible)}"
    for site, access in header.items():
        yield from access.complaints
        if site not in used:
            yield f"no program looks at {access.function}"
        else:
            yield from _problems_of_labels(access, {label for label, ends in EDGES.items() if site in ends})
    for site in sorted(used - header.keys()):
        yield f"the header has no function for {site}"


def _problems_of_labels(access: Access, edges: set[str]) -> Iterator[str]:
    """A label stands at the ends of its edge, at all of them and nowhere else."""
    for label in sorted(edges - set(access.labels)):
        yield f"{access.function} is an end of [{label}], which does not stand there"
    for label in sorted(set(access.labels) - edges):
        yield f"{access.function} is no end of [{label}], which stands there"


def _join(one: str, other: str) -> str:
    """The weakest order that is at least as strong as both."""
    return next(order for order in ORDERS if at_most(one, order) and at_most(other, order))
