# Needs make and Python 3.11 or newer, nothing else. Every target makes the environment that it needs.

VENV   ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; \
	done)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PIP_EDITABLE := $(PIP) --no-build-isolation --editable

.DELETE_ON_ERROR:
.PHONY: help demo test coverage lint bench soak wheel wheel-test settings-page clean

help:
	@echo 'make demo        flights into SQLite with two workers, and what landed'
	@echo 'make test        the tests, under five minutes'
	@echo 'make coverage    the tests, and which lines and branches they reach, workers included'
	@echo 'make lint        ruff, mypy, pyright, import-linter'
	@echo 'make bench       records per second of the whole path, beside a hand-written loop'
	@echo 'make soak        the slow tests with their full counts (HEADRACE_SCALE=1)'
	@echo 'make wheel-test  the tests once more, against the built wheel in an environment of its own'
	@echo 'make clean       removes what the targets made'

# One stamp for each set of extras; they share the environment.
$(VENV)/.base: pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'make: found no Python 3.11 or newer with venv and ensurepip' >&2; \
		echo 'make: install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python' >&2; exit 1; }
	@test -x $(BIN)/python || '$(PYTHON)' -m venv $(VENV)
	@$(PIP) hatchling editables
	@$(PIP_EDITABLE) .
	@touch $@
$(VENV)/.test: $(VENV)/.base
	@$(PIP_EDITABLE) '.[test]'
	@touch $@
$(VENV)/.lint: $(VENV)/.test
	@$(PIP_EDITABLE) '.[test,lint]'
	@touch $@

demo: $(VENV)/.base
	@rm -rf demo-output && mkdir demo-output
	cd demo-output && env -u HEADRACE_CI -u HEADRACE_SCALE \
		../$(BIN)/headrace run "$(CURDIR)/examples/flights.py" --workers 2 --state state
	@$(BIN)/python examples/what_landed.py demo-output/flights.db

test: $(VENV)/.test
	$(BIN)/python -m pytest $(TESTS)

soak: $(VENV)/.test
	HEADRACE_SCALE=$${HEADRACE_SCALE:-1} $(BIN)/python -m pytest -m slow $(TESTS)

coverage: $(VENV)/.test
	$(BIN)/coverage run -m pytest $(TESTS)
	@$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(VENV)/.base
	$(BIN)/python bench/path.py $(BENCH)

wheel: $(VENV)/.base
	@rm -rf dist
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

wheel-test: wheel
	@rm -rf $(VENV)-wheel
	@'$(PYTHON)' -m venv $(VENV)-wheel
	@$(VENV)-wheel/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		"$$(echo dist/headrace-*.whl)[test]"
	$(VENV)-wheel/bin/python -m pytest $(TESTS)

settings-page: $(VENV)/.base
	$(BIN)/python docs/make_settings_page.py

clean:
	rm -rf demo-output dist .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
		$(VENV) $(VENV)-wheel
