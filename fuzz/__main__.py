"""``python -m fuzz``: nothing heavy here, as every process that the fuzzers start imports this module."""

if __name__ == "__main__":
    from fuzz.command import main

    main(prog_name="python -m fuzz")
