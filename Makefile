# Two commands need nothing but Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Two processes with one thread each. A process without work takes tests from the other one, which saves a fifth of the
# time compared with whole files per process (276 s instead of 346 s on two cores).
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal
# The tests of the parts and of the configuration, without the comparisons with literal versions of the methods. The
# other tests train whole runs, draw reports or start processes.
FAST := -m "not slow" -k "not literal" tests/guidances tests/learners tests/protocols tests/models tests/recipes \
	tests/terminal tests/test_architecture.py tests/test_config.py tests/test_public_names.py

.PHONY: demo test test-fast test-ray lint docs install bench clean

demo: $(INSTALLED)  ## train four methods on digits and write runs/demo/report.html
	$(BIN)/mnar demo

test: lint docs  ## format, lint, types, documentation, all tests: what CI runs
	$(PYTEST)

test-fast: $(INSTALLED)  ## lint, types and the fast tests, in less than a minute
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST) $(FAST)

# Ray is not part of the development tools, because it takes 220 MB.
test-ray: $(INSTALLED)  ## install Ray, and run the tests that need it, one after the other
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/bench/launchers

lint: $(INSTALLED)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(INSTALLED)  ## build the site into docs/_build/html; a warning is an error, and nothing is downloaded
	$(BIN)/python -m sphinx -W --keep-going -n -E -q -b html docs docs/_build/html

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
	rm -rf .venv docs/_build
