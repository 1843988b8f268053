"""The `arena` command and what its subcommands are made of."""
