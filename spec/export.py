"""Runs and graphs in other tools' formats: ITF traces (JSON) and Graphviz."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphviz

from spec.checker import Moment, reachable
from spec.model import Model
from spec.story import changes, show

GRAPH_STATES_MAX = 2000  # beyond it no picture helps anybody


def itf(run: tuple[Moment, ...], source: str) -> dict[str, Any]:
    """The run in the Informal Trace Format, which Apalache and its trace viewers read."""
    states = []
    for index, moment in enumerate(run):
        state = {name: _itf_value(value) for name, value in moment.state._asdict().items()}
        state["#meta"] = {"index": index, "step": str(moment.step or "start")}
        states.append(state)
    return {"#meta": {"format": "ITF", "source": source}, "vars": list(run[0].state._fields), "states": states}


def _itf_value(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _itf_value(each) for name, each in value._asdict().items()}
    if isinstance(value, (tuple, list)):
        return [_itf_value(each) for each in value]
    if isinstance(value, frozenset):
        return {"#set": sorted((_itf_value(each) for each in value), key=str)}
    if isinstance(value, (bool, str)):
        return value
    if value is None:
        return "none"
    return {"#bigint": str(value)}


def graph(model: Model, *, symmetry: bool = False) -> graphviz.Digraph:
    """The whole state graph of a small model; an edge is labelled with its step, a node tells how it differs."""
    states = reachable(model, symmetry=symmetry, limit=GRAPH_STATES_MAX)
    if len(states) > GRAPH_STATES_MAX:
        raise ValueError(f"more than {GRAPH_STATES_MAX} states are too many for a picture")
    same = model.canonical if symmetry and model.canonical else lambda state: state
    numbers = {state: number for number, state in enumerate(states)}
    picture = graphviz.Digraph(model.name, node_attr={"shape": "box", "fontsize": "9"}, edge_attr={"fontsize": "9"})
    for state, number in numbers.items():
        told = list(changes(states[0], state)) or [f"{name}: {show(value)}" for name, value in state._asdict().items()]
        picture.node(str(number), "\\l".join(map(graphviz.escape, told)) + "\\l")
    for state, number in numbers.items():
        for step, after in model.successors(state):
            style = "solid" if step.action.progress else "dashed"
            picture.edge(str(number), str(numbers[same(after)]), label=str(step), style=style)
    return picture


def write_graph(picture: graphviz.Digraph, target: Path) -> None:
    """Write the picture: `.dot` as text, any other suffix drawn by Graphviz's own `dot` program.

    Raises:
        ValueError: the suffix is no format of Graphviz, or the program is not there.
    """
    if target.suffix in (".dot", ".gv"):
        target.write_text(picture.source)
        return
    try:
        drawn = picture.pipe(format=target.suffix.lstrip("."))
    except graphviz.ExecutableNotFound:
        raise ValueError("drawing takes Graphviz's program `dot` on the PATH; a .dot file needs none") from None
    target.write_bytes(drawn)
