# `make` alone explains the targets.
# The first of these that is there and new enough makes the virtual environment.
PYTHON ?= python3.13 python3.12 python3.11 python3.14 python3
UV := $(shell command -v uv 2>/dev/null)
BIN := .venv/bin
INSTALL = $(if $(UV),uv pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check)
PYTEST = $(BIN)/python -m pytest --dist worksteal --durations 25
export PATH := $(CURDIR)/$(BIN):$(PATH)
unexport PYTHONDONTWRITEBYTECODE # without compiled files every process of the tests compiles everything anew
EXTRAS ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup serve test system clients check fix coverage docs bench smoke soak wheel dist lock clean

help: ## Explain the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: .venv/.ready $(if $(EXTRAS),.venv/.ready-with-$(EXTRAS)) ## Create a virtual environment with pinned dependencies (options: make setup EXTRAS=mcp,postgres)

serve: setup ## Run the gateway (options: make serve ARGS="--port 9000")
	@$(BIN)/toolwire serve $(ARGS)

test: check ## Check style, types and layers; run all tests that need no other programs (options: make test ARGS="-k museum")
	@$(PYTEST) -n 4 $(ARGS)

system: .venv/.ready-dev ## Run the tests of many processes: workers, reload, crashes, two versions of PostgreSQL, PgBouncer
	@for program in pgbouncer nginx fish; do PATH="$$PATH:/usr/sbin" command -v $$program >/dev/null || \
		echo "Without $$program its tests are skipped (Debian: apt install $$program)" >&2; done
	@$(PYTEST) -n 4 tests/system $(ARGS)

clients: .venv/.ready-dev tests/clients/js/node_modules/.installed ## Run the tests with Claude Code, Codex, Gemini CLI, OpenCode, Cline, LangChain, the AI SDK, a browser
	@$(PYTEST) -n 3 tests/clients $(ARGS)

check: .venv/.ready-dev ## Check style, types, layers and size
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/count_lines.py

coverage: .venv/.ready-dev ## Measure which statements `make test` runs, by package, in all processes
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run -m pytest -q -n 4 --dist worksteal $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/python scripts/coverage_report.py

fix: .venv/.ready-dev ## Let ruff repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: .venv/.ready-docs ## Build the documentation site into build/site (options: make docs ARGS=serve)
	@$(BIN)/python scripts/build_docs.py $(ARGS)

bench: .venv/.ready-dev ## Measure the gateway's CPU time relative to a minimal translator (needs gcc and taskset; options: make bench ARGS="peers")
	@$(BIN)/python bench/run.py $(ARGS)

smoke: setup ## Check calls over every API through a running gateway (options: make smoke ARGS="--url … --model …")
	@$(BIN)/python scripts/smoke.py $(ARGS)

soak: .venv/.ready-dev tests/clients/js/node_modules/.installed ## Run the long tests: fuzzing, leaks, the whole matrix, attacks with a ceiling for each
	@$(PYTEST) -m soak --hypothesis-profile soak -n 2 --dist loadgroup tests $(ARGS)

wheel: .venv/.ready-build ## Build the source archive and the wheel into dist/
	@rm -rf dist build
	@$(BIN)/python -c "from setuptools import build_meta; build_meta.build_sdist('dist'); build_meta.build_wheel('dist')" >/dev/null
	@rm -rf build
	@ls dist/*

dist: wheel ## Build them, and try the wheel in a clean environment
	@$(BIN)/python scripts/try_wheel.py dist/*.whl

lock: .venv/.ready-dev ## Pin the newest dependencies that fit
	@$(BIN)/python scripts/lock.py

clean: ## Remove the environment, the npm clients and the caches
	rm -rf .venv tests/clients/js/node_modules .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .cache

tests/clients/js/node_modules/.installed: tests/clients/js/package-lock.json .venv/.ready-dev
	@echo "Installing the clients of tests/clients/js: 1.3 GB" >&2
	@cd tests/clients/js && npm ci --silent
	@touch $@

.venv/bin/python:
	@echo "Making a virtual environment in .venv; this is done once" >&2
	@for each in $(PYTHON); do \
		$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		$(if $(UV),exec uv venv --quiet --seed --python "$$(command -v $$each)" .venv,$$each -c 'import venv, ensurepip' 2>/dev/null && exec $$each -m venv .venv); \
	done; \
	echo "Toolwire needs Python 3.11 or newer with venv and pip (Debian: apt install python3-venv)." >&2; exit 1

.venv/.ready: .venv/bin/python requirements.txt pyproject.toml
	@echo "Installing $$(grep -c '==' requirements.txt) packages from requirements.txt with $(if $(UV),uv: a few seconds,pip: about half a minute), the first time" >&2
	@$(INSTALL) -r requirements.txt
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.ready-build: .venv/bin/python requirements.txt
	@$(INSTALL) "$$(grep '^setuptools==' requirements.txt)"
	@touch $@

.venv/.ready-dev: .venv/.ready requirements-extras.txt requirements-dev.txt
	@echo "Installing $$(cat requirements-extras.txt requirements-dev.txt | grep -c '==') packages for tests and checks from requirements-dev.txt" >&2
	@$(INSTALL) -r requirements-dev.txt
	@touch $@

.venv/.ready-docs: .venv/.ready requirements-docs.txt
	@$(INSTALL) -r requirements-docs.txt
	@touch $@

.venv/.ready-with-%: .venv/.ready requirements-extras.txt
	@echo "Installing the extras $*" >&2
	@$(INSTALL) --constraint requirements-extras.txt --no-build-isolation --editable '.[$*]'
	@touch $@
