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

.PHONY: demo test test-fast test-ray lint docs install lock bench fuzz crash-test clean

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
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/bench/launchers tests/own_data tests/trained

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

MINUTES ?= 60
fuzz: $(INSTALLED)  ## try changed files, options and checkpoints for MINUTES minutes; runs/fuzz gets those that fail
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.fuzz --minutes $(MINUTES) --out runs/fuzz

crash-test: $(INSTALLED)  ## kill a run of every kind at each of its file operations, resume it, and compare
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.crash.crash_test

install: $(INSTALLED)

# A second run finds the stamp and installs nothing.
$(INSTALLED): pyproject.toml constraints.txt requirements.lock
	@echo 'installing into .venv, which takes a minute'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements.lock
# torch has no hash, because a CPU build of torch has another hash than the file of the index.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# uv keeps the versions that the lock already has, unless pyproject.toml or constraints.txt ask for others.
lock:  ## write requirements.lock: the version and the hashes of every package that `make install` installs, except torch
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	$(BIN)/python -m uv pip compile pyproject.toml --quiet --extra dev --constraint constraints.txt --universal \
		--python-version 3.11 --generate-hashes --no-annotate --no-emit-package torch \
		--custom-compile-command 'make lock' --output-file requirements.lock

clean:
	rm -rf .venv docs/_build
