# Everything a checkout needs. Only Python 3.11 or newer and make have to be there; each target does its own set-up.
# GNU make 3.81 (macOS) is enough. Choose another interpreter with: make install PYTHON=python3.13

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
MODEL := models/bge-small-en

# pip runs of one environment must not overlap, whatever -j says.
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help install serve demo test torture lint bench bench-recall bench-growth bench-context bench-files bench-server conformance clean

help:
	@echo "make serve        run Perdure over HTTP and print the lines to paste into clients"
	@echo "make demo         see a memory survive the death of its server"
	@echo "make test         run the tests; ARGS='-k recall' narrows them, ARGS=--cold starts each process afresh,"
	@echo "                  ARGS='--database postgres' runs those with a store on a Postgres that they start,"
	@echo "                  with --files database those of files too"
	@echo "make torture      inject every fault, and run what is too slow for each commit (hours);"
	@echo "                  ARGS='--soak-minutes 60', ARGS='-k power' narrows it"
	@echo "make install      make .venv only; then .venv/bin/perdure is the command"
	@echo "make lint         ruff, pyright, import-linter"
	@echo "make bench        measure; each figure is printed beside its floor"
	@echo "make bench-recall what recall finds in public sets, beside baselines; DATA=DIR says where they lie"
	@echo "make bench-growth recall and remember from 1,000 to 100,000 memories, with a plot"
	@echo "make bench-context what summaries keep, and get_context as a thread grows; DATA=DIR says where the sets lie"
	@echo "make bench-files  file tools beside an echo, a synced write and grep"
	@echo "make bench-server what holds on servers that many share: leaks, equal answers, a server or Postgres that dies"
	@echo "make conformance  the official protocol suite (needs Node.js)"
	@echo "make clean        remove .venv and caches; stored memories stay"

# The stamps make a second run free, and free of the network; they live in .venv, so they go when it goes.
# Byte code is compiled here because an environment may keep Python from writing it at the first start.
install: $(VENV)/.installed $(VENV)/.model
	@$(BIN)/python -m compileall -q server/perdure

# macOS and some Linux systems call an older interpreter python3, so newer names are tried after it.
$(BIN)/python:
	@set -e; for python in "$(PYTHON)" python3.14 python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then \
	    echo "Making $(VENV) with $$("$$python" --version)."; \
	    "$$python" -m venv --clear $(VENV) || { echo "If the venv module is missing: apt-get install python3-venv" >&2; exit 1; }; \
	    exit 0; \
	  fi; \
	done; \
	echo "Perdure needs Python 3.11 to 3.14. Install one, or name it: make install PYTHON=/path/to/python3" >&2; exit 1

# pip reads dependency groups from 25.1 on; a fresh environment brings an older one.
$(VENV)/.pip: | $(BIN)/python
	@$(PIP) install --upgrade 'pip>=25.1,<27'
	@touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.pip
	@echo "Installing Perdure into $(VENV): a minute or two, once."
	@$(PIP) install -e .
	@touch $@

$(VENV)/.model: $(wildcard $(MODEL)/*.toml $(MODEL)/*.py $(MODEL)/*/*.py) $(VENV)/.pip
	@echo "Building and installing the embedding model."
	@$(PIP) install --force-reinstall ./$(MODEL)
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.pip
	@$(PIP) install --group test
	@touch $@

$(VENV)/.lint: pyproject.toml $(VENV)/.pip
	@$(PIP) install --group lint
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.pip
	@$(PIP) install --group bench
	@touch $@

serve: install
	@exec $(BIN)/perdure serve

demo: install
	@$(BIN)/python bench/demo.py

# Two tests at a time: most of a test is waiting for the processes it starts. Who is done takes over from the other.
# It has to stay under ten minutes on two cores: what takes long and shows little more is marked thorough.
test: install $(VENV)/.test
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# First what injects faults, whose table it writes; then the tests of `make test` that have more to try.
torture: install $(VENV)/.test
	@$(BIN)/python -m pytest -n 2 --dist load --maxschedchunk 1 --torture -m "torture or thorough" $(ARGS) tests/torture tests

lint: install $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: install
	@$(BIN)/python bench/run.py $(ARGS)

bench-recall: install $(VENV)/.bench
	@$(BIN)/python bench/recall.py $(DATA) $(ARGS)

bench-growth: install $(VENV)/.bench
	@$(BIN)/python bench/growth.py $(ARGS)

# Without the sets the first part says what it needs, and the second is measured all the same.
bench-context: install
	@$(BIN)/python bench/compaction.py $(DATA); compaction=$$?; \
	  $(BIN)/python bench/extraction.py $(DATA); extraction=$$?; \
	  $(BIN)/python bench/context.py $(ARGS) && exit $$((compaction | extraction))

bench-files: install
	@$(BIN)/python bench/files.py $(ARGS)

# PostgreSQL comes with what the tests need.
bench-server: install $(VENV)/.test
	@$(BIN)/python bench/server.py $(ARGS); shared=$$?; \
	  $(BIN)/python bench/server_replicas.py --out bench/results/replicas.md $(ARGS) && exit $$shared

conformance: install $(VENV)/.test
	@bash tests/conformance/run

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find server tests bench models -name __pycache__ -type d -prune -exec rm -rf {} +
