# Two commands need nothing but Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test install bench clean

demo: $(INSTALLED)  ## train four methods on digits and write runs/demo/report.html
	$(BIN)/mnar demo

test: $(INSTALLED)  ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

bench: $(INSTALLED)  ## print what a step, a PRG call and a view cost on this machine
	$(BIN)/python benchmarks/prg_time.py
	$(BIN)/python benchmarks/augment_time.py
	$(BIN)/python benchmarks/step_time.py --dataset digits

install: $(INSTALLED)

# A second run finds the stamp and installs nothing.
$(INSTALLED): pyproject.toml constraints.txt
	@echo 'installing into .venv, which takes a minute'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv
