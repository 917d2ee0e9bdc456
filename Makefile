# Everything here sets itself up in .venv, on a machine with only python3 (>= 3.11) and make.
#   make demo      train a hidden Chow-Liu tree on MNIST digits, save the model and a picture of samples
#   make test      run the tests
#   make lint      ruff and pyright
#   make test-all  run the tests, and again on a newer Python with the newest JAX where one is found
#   make bench     measure speed on this CPU beside other libraries (about 10 minutes, nothing else running)
#   make docs      build the reference of the Python interface as web pages, into docs-output
#   make clean     remove caches and the demo's output (not .venv)
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: demo test test-all lint format bench docs clean help

VENV := .venv
VENV_NEW := .venv-new
VENV_BENCH := .venv-bench
BIN := $(VENV)/bin
PYTEST_FLAGS ?= -q -n auto --maxprocesses 8
DEMO_DIR ?= demo-output

# The first interpreter that starts and is new enough; PYTHON=... overrides the choice.
FIND_PYTHON = for candidate in $(PYTHON) python3 python python3.13 python3.12 python3.11 \
	"$$HOME"/.pyenv/versions/3.1[1-9]*/bin/python; do \
	if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	echo "$$candidate"; break; fi; done

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python $(VENV_BENCH)/bin/python: %/bin/python:
	@python="$$($(FIND_PYTHON))"; \
	if [ -z "$$python" ]; then echo "make: no Python >= 3.11 found; set PYTHON=/path/to/python" >&2; exit 1; fi; \
	echo "Creating $* with $$("$$python" --version)"; \
	"$$python" -m venv $* || { rm -rf $*; \
	echo "make: '$$python -m venv' failed (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }

# Stamps remember what is installed, so a second call installs nothing.
$(VENV)/.stamp-demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	@touch $@

$(VENV)/.stamp-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,test,dev]'
	@touch $@ $(VENV)/.stamp-demo

demo: $(VENV)/.stamp-demo
	@mkdir -p $(DEMO_DIR)
	$(BIN)/jaxjuice train mnist5k --latents 32 --epochs 10 --test 0.2 \
		--out $(DEMO_DIR)/mnist5k.jjc --samples $(DEMO_DIR)/samples.png

test: $(VENV)/.stamp-dev
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.stamp-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The newest interpreter that is newer than .venv's.
FIND_NEWER_PYTHON = for candidate in python3.13 "$$HOME"/.pyenv/versions/3.13*/bin/python \
	python3.12 "$$HOME"/.pyenv/versions/3.12*/bin/python; do \
	if "$$candidate" -c "import sys; sys.exit(sys.version_info[:2] <= $$($(BIN)/python \
	-c 'import sys; print(sys.version_info[:2])'))" >/dev/null 2>&1; then \
	echo "$$candidate"; break; fi; done

test-all: test
	@if [ ! -x $(VENV_NEW)/bin/python ]; then \
		python="$$($(FIND_NEWER_PYTHON))"; \
		if [ -z "$$python" ]; then \
			echo "test-all: no Python newer than $$($(BIN)/python --version) found; ran on that one only"; exit 0; fi; \
		echo "Creating $(VENV_NEW) with $$("$$python" --version)"; "$$python" -m venv $(VENV_NEW) || exit 1; \
	fi; \
	if [ ! -e $(VENV_NEW)/.stamp-dev ] || [ pyproject.toml -nt $(VENV_NEW)/.stamp-dev ]; then \
		$(VENV_NEW)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade \
			--upgrade-strategy eager --editable '.[demo,test]' && touch $(VENV_NEW)/.stamp-dev || exit 1; \
	fi; \
	$(VENV_NEW)/bin/python -c 'import jax, platform; print("Python", platform.python_version(), "jax", jax.__version__)' \
	&& $(VENV_NEW)/bin/python -m pytest $(PYTEST_FLAGS)

# The libraries to compare with live in an environment of their own. One that cannot be installed is
# skipped: all together first, and one by one if that fails.
$(VENV_BENCH)/.stamp: pyproject.toml bench/requirements.txt | $(VENV_BENCH)/bin/python
	$(VENV_BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[demo]'
	$(VENV_BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -r bench/requirements.txt \
	|| grep -v '^#' bench/requirements.txt | while read -r peer; do \
		$(VENV_BENCH)/bin/python -m pip install --quiet --disable-pip-version-check "$$peer" \
		|| echo "make bench: $$peer cannot be installed; its rows will be missing" >&2; done
	@touch $@

BENCH_FLAGS ?=
bench: $(VENV_BENCH)/.stamp
	$(VENV_BENCH)/bin/python -m bench.cpu $(BENCH_FLAGS)

$(VENV)/.stamp-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(VENV)/.stamp-docs
	$(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf docs-output $(DEMO_DIR) build dist .pytest_cache .ruff_cache
	find . -path './$(VENV)*' -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf
