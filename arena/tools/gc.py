"""`arena gc`: removes what killed runs have left."""

from __future__ import annotations

import json

import click


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Only list it.")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def command(dry_run: bool, as_json: bool) -> None:
    """Remove what killed runs have left under /dev/shm and in temporary directories.

    That is: segments and sockets of `backing="shm"` whose writer was killed before all readers had joined, and the entries
    of offload regions. Only what is provably nobody's is touched: a living process holds a lock on what it has made,
    whatever PID namespace it is in. Other users' files are passed over, and what has not the name, the mode and the
    content of something that arena makes.
    """
    from arena.shm import leftovers

    found = leftovers.collect(remove=not dry_run)
    if as_json:
        items = [{"path": str(each.path), "what": each.what, "bytes": each.nbytes} for each in found]
        click.echo(json.dumps({"removed": not dry_run, "leftovers": items}))
        return
    for each in found:
        click.echo(f"{each.path}: {each.what}, {each.nbytes} bytes")
    total = sum(each.nbytes for each in found)
    click.echo(f"{len(found)} {'found' if dry_run else 'removed'}, {total} bytes")
