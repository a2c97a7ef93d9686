# make demo   a real adaptation on this machine, from nothing (virtual environment included)
# make test   set-up, lint, types and every test
# make docs   the documentation, as a site that opens from disk
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help demo test test-slow lint unit coverage docs setup browser wheel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## virtual environment with pinned dependencies

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: setup ## adapt an encoder to a library's documentation and say whether it helped
	$(BIN)/mixfluence demo

test: setup lint browser ## lint, types and all tests
	$(BIN)/python -m pytest -n 2

test-slow: setup ## 200 killed and resumed runs (SOAK_KILLS sets another number), and jobs of several processes
	$(BIN)/python -m pytest -n 0 -s -m soak

browser: ## Debian's chromium, in which report pages are tested; installed if that is allowed
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	  && apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium > /dev/null; } \
	  || echo 'no chromium and no right to install it: the tests of report pages in a browser will fail'

unit: setup ## the quick tests only (under a minute)
	$(BIN)/python -m pytest -n 2 -m 'not slow and not soak'

coverage: setup browser ## all tests, with the share of lines they run; fails below the floor of pyproject.toml
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

docs: setup ## build the site into site/; any broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'open site/index.html; for the search box: python -m http.server --directory site'

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

wheel: setup ## build the wheel and the source archive into dist/
	$(BIN)/python -m build

clean: ## remove what the targets made
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache
