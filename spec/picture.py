"""`python -m spec picture`: a model seen from one point of view, drawn from the states that the search finds.

A view names what it sees of a state, or None where it does not look. All states that it names alike become one box, and
two boxes are joined by the actions that lead from a state of the one to a state of the other. So a picture cannot say
what the model does not. Dashed lines are steps that nobody may count on: deaths, joiners, new messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import graphviz

from spec import models
from spec.checker import reachable
from spec.export import write_graph
from spec.model import Model

Edges = dict[tuple[str, str, bool], set[str]]  # (from, to, is it progress): actions


def seen(model: Model, view: Any) -> tuple[list[str], Edges]:
    """The boxes in the order of their discovery, and the edges between different ones."""
    boxes: dict[str, None] = {}
    edges: Edges = {}
    for state in reachable(model):
        here = view(model.config, state)
        if here is None:
            continue
        boxes.setdefault(here)
        for step, after in model.successors(state):
            there = view(model.config, after)
            if there not in (here, None):
                edges.setdefault((here, there, step.action.progress), set()).add(step.action.name)
    return list(boxes), edges


def mermaid(boxes: list[str], edges: Edges) -> str:
    """The picture as a Mermaid flowchart, which code hosts draw inside Markdown."""
    numbers = {box: number for number, box in enumerate(boxes)}
    lines = ["flowchart TD", *(f'    s{number}["{box}"]' for box, number in numbers.items())]
    for here, there, progress in sorted(edges, key=lambda edge: (numbers[edge[0]], numbers[edge[1]], not edge[2])):
        actions = ", ".join(sorted(edges[here, there, progress]))
        lines.append(f"    s{numbers[here]} {'-->' if progress else '-.->'}|{actions}| s{numbers[there]}")
    return "\n".join(lines)


def digraph(boxes: list[str], edges: Edges) -> graphviz.Digraph:
    """The picture for Graphviz."""
    picture = graphviz.Digraph(node_attr={"shape": "box", "style": "rounded"}, edge_attr={"fontsize": "10"})
    for box in boxes:
        picture.node(box)
    for (here, there, progress), actions in edges.items():
        picture.edge(here, there, ", ".join(sorted(actions)), style="solid" if progress else "dashed")
    return picture


def views() -> dict[str, tuple[Any, Any, Any]]:
    """Every view: "model/view" to (module, configuration, view)."""
    modules = {name: models.load(name) for name in models.available()}
    return {
        f"{name}/{view}": (module, *what)
        for name, module in modules.items()
        for view, what in getattr(module, "VIEWS", {}).items()
    }


def draw(name: str) -> str:
    """One view as Mermaid."""
    module, config, view = views()[name]
    return mermaid(*seen(module.model(config), view))


@click.command("picture")
@click.argument("name", metavar="MODEL/VIEW", required=False)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="A .dot or .svg file; else Mermaid text.")
@click.option("--update", type=click.Path(path_type=Path, exists=True), help="Redraw every picture of a Markdown file.")
def command(name: str | None, out: Path | None, update: Path | None) -> None:
    """Draw a protocol from its model; without a name, list the views."""
    if update is not None:
        update.write_text(updated(update.read_text()))
    elif name is None:
        click.echo("\n".join(views()))
    elif name not in views():
        raise click.BadParameter(f"{name!r} is none of {', '.join(views())}", param_hint="MODEL/VIEW")
    elif out is None:
        click.echo(draw(name))
    else:
        module, config, view = views()[name]
        try:
            write_graph(digraph(*seen(module.model(config), view)), out)
        except ValueError as why:
            raise click.UsageError(f"--out {out}: {why}") from None


MARK = "<!-- python -m spec picture "
FENCE = "```"


def updated(text: str) -> str:
    """The Markdown text with each picture that follows a mark drawn anew."""
    first, *rest = text.split(MARK)
    parts = [first]
    for part in rest:
        name, after_mark = part.split(" -->", 1)
        before, _, after = after_mark.split(FENCE, 2)
        parts.append(f"{MARK}{name} -->{before}{FENCE}mermaid\n{draw(name)}\n{FENCE}{after}")
    return "".join(parts)
