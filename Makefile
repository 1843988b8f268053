# Two commands for a fresh clone: `make demo` and `make test`.  Each sets up what it needs first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test check-deep lint wheel clean

demo: $(READY)
	$(VENV)/bin/arena demo $(ARGS)

test: $(READY) lint
	$(RUN) -m pytest -m "not deep" $(ARGS)

check-deep: $(READY)
	$(RUN) -m pytest --timeout 3600 $(ARGS)

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

wheel: $(READY)
	$(RUN) -m build --wheel

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info arena/*.so arena/_native.c
