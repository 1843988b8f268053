# Two commands for a fresh clone: `make demo` and `make test`.  Each sets up what it needs first.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
INSTALL := $(VENV)/bin/pip install --quiet --constraint constraints.txt
READY := $(VENV)/.ready
TOOLS := $(VENV)/.ready-to-develop

.PHONY: demo test check-deep lint wheel clean

demo: $(READY)
	$(VENV)/bin/arena demo $(ARGS)

test: $(TOOLS) lint
	$(RUN) -m pytest -m "not deep" $(ARGS)

check-deep: $(TOOLS)
	$(RUN) -m pytest --timeout 3600 $(ARGS)

lint: $(TOOLS)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

wheel: $(TOOLS)
	$(RUN) -m build --wheel

$(READY): pyproject.toml setup.py constraints.txt $(wildcard csrc/*)
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	$(INSTALL) --editable '.[demo]'
	touch $@

$(TOOLS): $(READY)
	$(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info arena/*.so arena/_native.c
