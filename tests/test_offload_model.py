"""Real processes walk through the rendezvous one step at a time, and each step is one that the model allows there."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from offload_support import Outcome, Plan, Worker, remove_what_is_left, what_is_left, workers

from arena.shm import directory as places
from arena.shm.directory import directory
from arena.shm.entry import Entry
from spec.model import Action
from spec.models import rendezvous
from spec.models.rendezvous_state import Config, Record, Step, content_of, live_members, move

STEPS_MAX = 400
TERMINAL = (Step.CLEANED_UP, Step.REFUSED, Step.DEAD)


@dataclass
class Walk:
    """A run of real processes beside a run of the model, in a place where no `arena gc` of somebody else's comes by.

    A process stops after each step.  It is told to go on only when the model says that it has a step to take, so it
    never waits for a lock; what it then reports must be one of the model's steps.
    """

    config: Config
    engine_id: str
    pool: list[Worker]
    rng: random.Random
    state: Any = None
    taken: list[str] = field(default_factory=list)
    started: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.model = rendezvous.model(self.config)
        self.state = rendezvous.initial(self.config)
        fails = self.config.may_fail and self.rng.random() < 0.5
        self.plans = [
            Plan(
                self.engine_id,
                rank,
                {"nonce": letter, "populate_only_on_creator": self.config.barrier},
                barrier=self.config.barrier,
                check_error="too little memory" if fails and self.rng.random() < 0.7 else None,
                break_at="arena.shm.population.populate" if fails and self.config.barrier else None,
                driven=True,
                place=places.SHM_DIRECTORY,
            )
            for rank, letter in enumerate(self.config.instances)
        ]

    def enabled(self, number: int) -> dict[str, Any]:
        """Where each of the model's steps leads that this process could take now."""
        found = {}
        for each in self.model.actions:
            if not each.environment and (after := self.after(each, number)) is not None:
                found[each.name] = after
        return found

    def must_wait(self, number: int) -> bool:
        """To tell of a failure the code takes the lock, so that the first one stands; the model does not."""
        me = self.state.processes[number]
        fails = self.plans[number].break_at is not None and me.step == Step.POPULATE
        return fails and self.state.files[me.entry].locked_by is not None

    def after(self, action: Action, number: int) -> Any:
        return action(self.config, self.state, number)

    def run(self) -> None:
        for _ in range(STEPS_MAX):
            able = [number for number in range(len(self.pool)) if self.enabled(number) and not self.must_wait(number)]
            if not able:
                break
            number = self.rng.choice(able)
            if self.config.deaths and self.rng.random() < 0.03:
                self.kill(number)
            else:
                self.go_on(number)
        settled = all(each.step in TERMINAL for each in self.state.processes)
        assert settled, self.story("they have not come to an end")

    def kill(self, number: int) -> None:
        self.pool[number].kill()
        die = next(each for each in self.model.actions if each.name == "die")
        self.state = self.after(die, number)
        self.taken.append(f"{number}: dies")

    def go_on(self, number: int) -> None:
        worker, step = self.pool[number], self.state.processes[number].step
        allowed = self.enabled(number)
        if number not in self.started:
            self.started.add(number)
            worker.tell("construct", self.plans[number])
        elif step == Step.MEMBER:
            worker.tell("cleanup")
        else:
            worker.tell("go")
        name = worker.hear()
        self.taken.append(f"{number}: {name}")
        if name == "unlink_entry" and name not in allowed:
            self.others_died_meanwhile(number)
            allowed = self.enabled(number)
        assert name in allowed, self.story(f"the model allows {sorted(allowed)}")
        self.state = allowed[name]
        if name == "find_live_member":
            self.state = move(self.state, number, Step.ATTACH, memo=self.first_live_in_entry())
        if self.state.processes[number].step in (Step.MEMBER, Step.CLEANED_UP, Step.REFUSED):
            self.finish(number)

    def finish(self, number: int) -> None:
        """The construction, or the clean-up, returns after this step."""
        answer = self.pool[number].ask("go")
        step = self.state.processes[number].step
        if step == Step.MEMBER:
            assert isinstance(answer, Outcome), self.story(f"{answer}")
            assert answer.is_in, self.story(answer.text)
        elif step == Step.REFUSED:
            assert isinstance(answer, Outcome), self.story(f"{answer}")
            assert answer.error, self.story("no error was raised")

    def others_died_meanwhile(self, number: int) -> None:
        """The code looks whether it is the last after the erasure; the model looks with it."""
        others = [each for each in live_members(self.state, content_of(self.state, number)) if each != number]
        assert not others, self.story(f"{others} are alive")
        self.state = move(self.state, number, Step.UNLINK)

    def first_live_in_entry(self) -> int:
        entry = Entry.open(directory() / f"offload-{self.engine_id}", create=False)
        try:
            pids = [record.pid for record in entry.read().records.values()]
        finally:
            entry.close()
        numbers = [number for pid in pids for number, worker in enumerate(self.pool) if worker.pid == pid]
        record = self.state.files[self.state.path].content
        assert isinstance(record, Record)
        return next(number for number in numbers if number in live_members(self.state, record))

    def story(self, what: str) -> str:
        return f"{what}\n" + "\n".join(self.taken)


CONFIGS = {
    "one instance": Config("AAA"),
    "two instances": Config("AAB"),
    "the creator may fail": Config("AAA", may_fail=True),
    "the creator populates": Config("AAA", barrier=True),
    "the creator populates, or fails": Config("AAA", barrier=True, may_fail=True),
}


def walk(name: str, seed: int, walks: int) -> None:
    rng = random.Random(f"{name} {seed}")
    steps: set[str] = set()
    with workers(3) as pool:
        for _ in range(walks):
            for place, each in enumerate(pool):
                if not each.process.is_alive():
                    each.end()
                    pool[place] = Worker()
            engine_id = f"walk-{uuid.uuid4().hex[:12]}"
            one = Walk(CONFIGS[name], engine_id, pool, rng)
            one.run()
            steps |= {each.partition(": ")[2] for each in one.taken}
            if "dies" not in "".join(one.taken) and not CONFIGS[name].may_fail:
                assert what_is_left(engine_id) == [], one.story("a name is left")
            for each in pool:
                each.ask("forget")
            remove_what_is_left(engine_id)
    expected = {each.name for each in rendezvous.model(CONFIGS[name]).actions if not each.environment}
    rare = {"path_is_another_file", "member_died_meanwhile", "find_failed_creator", "memory_check_fails", "population_fails"}
    rare |= {"find_unpopulated"}
    assert expected - steps <= rare, f"steps that no walk took: {expected - steps}"


@pytest.fixture(autouse=True)
def _place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "SHM_DIRECTORY", str(tmp_path))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_code_takes_the_models_steps(name: str, seed: int) -> None:
    walk(name, seed, 15)


@pytest.mark.deep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_code_takes_the_models_steps_deep(name: str, seed: int) -> None:
    walk(name, seed, 500)
