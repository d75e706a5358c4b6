# Two targets matter: `make report` (the main job, from nothing) and `make test`. Both build .venv when it is missing or
# older than pyproject.toml, and find it ready the second time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SAMPLE ?= sample_traces/starved
BASE ?= HEAD

.PHONY: report test suite check test-all coverage lint types layers notebooks docs gallery bench confusion what-if fuzz clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml hatch_build.py $(wildcard tracelib/sources/torch_profiler/*.[ch])
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tracelib needs Python 3.11 or newer; give one with PYTHON=/path/to/python3")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[fast,image]' --group dev
	@touch $@

report: $(READY)  ## write the report of SAMPLE (default sample_traces/starved) to reports/
	$(BIN)/tracelib report $(SAMPLE) -o reports/$(notdir $(SAMPLE))

test: $(READY) lint types layers notebooks suite  ## everything that CI checks

suite: $(READY)
	$(BIN)/python -m pytest -n 3

check: $(READY) lint types layers  ## lint, types, layers, quick tests next to your change (BASE=main: of a branch)
	@tests=$$($(BIN)/python -m tests.affected $(BASE)); echo "tests: $${tests:-none}"; \
	  [ -z "$$tests" ] || $(BIN)/python -m pytest -q -n 2 -m "not slow and not thorough" $$tests

test-all: $(READY)  ## the tests with more of the same: every size of each simulated defect, every capture
	$(BIN)/python -m pytest -n 3 -m ""

coverage: $(READY)  ## the same tests, slower: which lines do they not reach?
	$(BIN)/python -m pytest -n 2 --cov=tracelib --cov-report=term:skip-covered

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

notebooks: $(READY)
	$(BIN)/nbstripout --verify --extra-keys "metadata.papermill cell.metadata.papermill" notebooks/*.ipynb

docs: $(READY)  ## these pages as a site in build/docs, every link in them checked
	$(BIN)/sphinx-build -W --keep-going -q -c docs -b html -d build/doctrees . build/docs
	@echo build/docs/index.html

gallery: $(READY)  ## every notebook on a sample, rendered to reports/gallery/ (docs/gallery shows them without)
	$(BIN)/python docs/gallery/make.py

bench: $(READY)  ## measure the readers and the interval algebra beside others (HTA_PYTHON), into benchmarks/README.md
	$(BIN)/python benchmarks/run.py

confusion: $(READY)  ## blame simulated runs with known defects; prints the tables of docs/confusion.md
	$(BIN)/python -m tests.simulator.confusion

what-if: $(READY)  ## replay runs and compare with recordings of the changed server, into docs/what-if.md
	$(BIN)/python -m benchmarks.what_if --write

fuzz: $(READY)  ## an hour of damaged input for each reader (FUZZ_SECONDS, FUZZ_READER, FUZZ_SEED); keeps what fails in .fuzz
	FUZZ_SECONDS=$${FUZZ_SECONDS:-3600} FUZZ_EXAMPLES=$${FUZZ_EXAMPLES:-2000} $(BIN)/python -m pytest tests/sources/test_fuzz.py tests/sources/test_structure.py tests/sources/torch_profiler/test_native.py -q -s --basetemp=.fuzz

clean:  ## remove what was built
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage .fuzz
