"""Message slots: exact counts, and every seeded fault with the property that it breaks and the steps that it needs."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from types import ModuleType

import pytest
from click.testing import CliRunner

from spec import models, story
from spec.__main__ import main
from spec.checker import Result, check, reachable
from spec.model import Variant
from spec.models import double_release, flag_orders, message_slots
from spec.models.message_slots import Config, model
from spec.models.message_slots_state import renumber

# slots, readers, tensors in a message: states, transitions
COUNTS = {
    (1, 1, 1): (54, 107),
    (1, 2, 1): (580, 1_681),
    (2, 1, 2): (521, 1_416),
    (2, 2, 2): (23_797, 99_727),
}
LARGE_COUNTS = {(3, 2): (1_112_588, 6_275_307), (2, 3): (1_679_543, 10_067_128)}
LEAVE_COUNTS = {(1, 1, 1): 131, (1, 2, 1): 3_567, (2, 1, 2): 1_254}
LOAN_COUNTS = {(1, 1, 1): 138, (1, 2, 1): 1_668, (2, 1, 2): 3_681}

# The faults of leaving show sooner where there is only one reader, who owes a release.
LEAVE_STEPS = {"left-owes-nothing": ("S1", 9), "left-owes-unread": ("S4", 6), "left-seen-mid-message": ("S4", 6)}

# changes that do no harm: states and transitions with one slot, and with two
HARMLESS = {
    "leave": ((3_567, 12_707), (141_728, 666_563)),
    "quarantine": ((1_036, 3_145), (65_245, 281_647)),
    "skip": ((580, 1_745), (23_797, 106_463)),
    "loans": ((1_668, 5_082), (201_117, 905_635)),
    "no-rejoin": ((356, 1_027), (9_381, 42_113)),
    "unchecked": ((580, 1_681), (23_797, 99_727)),
    "flags": ((769, 2_194), (36_421, 146_890)),
    "flags-set-before-reset": ((748, 2_058), (33_094, 130_599)),
    "flags-reset-first": ((661, 1_852), (27_736, 112_035)),
    "ring-per-reader": ((635, 1_887), (27_925, 119_594)),
}

SIDE_MODELS = (flag_orders, double_release)


def config(size: tuple[int, int, int], **options: bool) -> Config:
    slots, readers, tensors = size
    return Config(slots=slots, readers=readers, tensors=tensors, **options)


def holds(result: Result) -> bool:
    if result.violation is not None:
        pytest.fail(story.as_text(result.violation))
    return result.ok


def faults(module: ModuleType) -> dict[str, Variant]:
    return {name: variant for name, variant in module.VARIANTS.items() if variant.breaks}


@pytest.mark.parametrize(("size", "counts"), COUNTS.items())
def test_counts(size: tuple[int, int, int], counts: tuple[int, int]) -> None:
    result = check(model(config(size)))
    assert holds(result)
    assert (result.states, result.transitions) == counts
    assert result.undrainable == 0
    assert result.fired["discard"] == 0


@pytest.mark.parametrize(("size", "states"), LEAVE_COUNTS.items())
def test_counts_with_readers_that_leave(size: tuple[int, int, int], states: int) -> None:
    result = check(model(config(size, leave=True)))
    assert holds(result)
    assert (result.states, result.undrainable) == (states, 0)


@pytest.mark.parametrize(("size", "states"), LOAN_COUNTS.items())
def test_counts_with_loans(size: tuple[int, int, int], states: int) -> None:
    result = check(model(config(size, loans=True)))
    assert holds(result)
    assert (result.states, result.undrainable) == (states, 0)


def test_symmetry_reduced_count() -> None:
    result = check(model(Config()), symmetry=True)
    assert holds(result)
    assert (result.states, result.transitions) == (6_208, 25_980)
    assert result.undrainable == 0


@pytest.mark.parametrize(
    "each",
    [
        Config(tensors=1, queue=1, without=("admit",)),
        Config(readers=1),
        Config(slots=1, leave=True),
        Config(slots=1, quarantine=True),
        Config(slots=1, loans=True),
    ],
    ids=["plain", "two tensors", "leave", "quarantine", "loans"],
)
def test_every_state_has_its_representative(each: Config) -> None:
    instance = model(each)
    assert instance.canonical is not None
    states = reachable(instance)
    assert {instance.canonical(state) for state in states} == set(reachable(instance, symmetry=True))
    for state in states[:: len(states) // 200 + 1]:
        for readers in permutations(range(each.readers)):
            rows = (*readers, *range(each.readers, each.rows))
            for slots in permutations(range(each.slots)):
                assert instance.canonical(renumber(state, rows, slots)) == instance.canonical(state)


@pytest.mark.parametrize("name", faults(message_slots))
def test_a_fault_is_found_with_the_fewest_steps(name: str) -> None:
    variant = message_slots.VARIANTS[name]
    violation = check(model(variant.config), drain=False).violation
    assert violation is not None
    assert (violation.name, violation.steps) == (variant.breaks, variant.steps)


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("name", LEAVE_STEPS)
def test_a_fault_of_leaving_shows_sooner_to_one_reader(name: str, slots: int) -> None:
    small = replace(message_slots.VARIANTS[name].config, slots=slots, readers=1, tensors=slots)
    violation = check(model(small), drain=False).violation
    assert violation is not None
    assert (violation.name, violation.steps) == LEAVE_STEPS[name]


def test_every_harmless_variant_is_pinned() -> None:
    assert set(HARMLESS) == set(message_slots.VARIANTS) - set(faults(message_slots))


@pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_change_does_no_harm(name: str, slots: int) -> None:
    config = message_slots.VARIANTS[name].config
    result = check(model(replace(config, slots=slots, tensors=min(slots, config.tensors))))
    assert holds(result)
    assert (result.states, result.transitions) == HARMLESS[name][slots - 1]
    assert result.undrainable == 0


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in SIDE_MODELS for name in module.VARIANTS])
def test_side_models(module: ModuleType, name: str) -> None:
    variant = module.VARIANTS[name]
    violation = check(module.model(variant.config)).violation
    assert (violation and violation.name, violation and violation.steps) == (variant.breaks, variant.steps)


@pytest.mark.parametrize(("discovery", "right", "of"), [(flag_orders.POLL, 6, 24), (flag_orders.MESSAGE, 20, 120)])
def test_how_many_orders_of_the_flags_are_right(discovery: str, right: int, of: int) -> None:
    orders = flag_orders.orders(discovery)
    assert len(orders) == of
    assert sum(check(flag_orders.model(each)).violation is None for each in orders) == right


def test_every_action_and_every_invariant_is_explained() -> None:
    for name in models.available():
        module = models.load(name)
        for each in module.model(module.Config()).actions:
            assert each.meaning, f"{name}: {each.name}"
        for each in module.model(module.Config()).invariants:
            assert each.meaning, f"{name}: {each.name}"


def test_the_command_fails_on_a_fault_and_tells_its_story() -> None:
    run = CliRunner().invoke(main, ["check", "--variant", "abort-forgets"])
    assert run.exit_code == 1
    assert "S4 fails after 4 steps" in run.output
    assert "abort()" in run.output
    run = CliRunner().invoke(main, ["check", "--variants"])
    assert run.exit_code == 0
    assert "abort-forgets" in run.output


@pytest.mark.deep
@pytest.mark.parametrize(
    ("slots", "readers", "counts"), [(3, 2, (97_679, 549_646)), (2, 3, (146_795, 878_837))], ids=["3,2", "2,3"]
)
def test_large_instances_symmetry_reduced(slots: int, readers: int, counts: tuple[int, int]) -> None:
    result = check(model(Config(slots, readers)), symmetry=True)
    assert holds(result)
    assert (result.states, result.transitions) == counts


@pytest.mark.deep
@pytest.mark.parametrize("size", LARGE_COUNTS)
@pytest.mark.timeout(1800)
def test_large_instances_whole(size: tuple[int, int]) -> None:
    result = check(model(Config(*size)), drain=False)
    assert holds(result)
    assert (result.states, result.transitions) == LARGE_COUNTS[size]
