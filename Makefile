# Every target has a help line; `make help` prints them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The first Python that is new enough.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
BIN := .venv/bin
DEV := $(BIN)/python -m tarsy_dev
PYTEST := $(BIN)/python -m pytest
SOURCES := operator dev bench tests
# Tests without a clock: as many processes as cores, since they wait for little.
PURE := -n 2 --dist loadfile --junitxml=.dev/junit/pure.xml
# Tests on real parts: one more, because they wait for servers; who has none left takes some of another's. What fails
# because something did not come in time, and for nothing else, runs once more (tests/support/retries.py). CI has all
# that a test could miss.
REAL := -n 3 --dist worksteal --junitxml=.dev/junit/real.xml --reruns 1 --only-rerun ^TooLong: $(if $(CI),--no-skips)

.PHONY: help setup assets lint fmt generate lock test nightly shake test-kind bench demo local local-down node node-down \
	clean

help:  ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */\1\t/' | expand -t 14

setup: .venv/installed  ## Install the hash-locked dependencies into .venv

.venv/installed: requirements/test.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "TARSy needs Python 3.11 or newer, with venv; set PYTHON to one." >&2; exit 1; }
	@PYTHONPATH=dev $(PYTHON) -m tarsy_dev setup .venv

assets: setup  ## Build or fetch what is not Python: control plane, kubernetes-mcp-server (cached)
	$(DEV) assets >/dev/null

lint: setup  ## Import contracts, ruff, strict types, generated files
	$(BIN)/lint-imports --no-logo
	$(BIN)/ruff check $(SOURCES) helm
	$(BIN)/ruff format --check $(SOURCES) helm
	$(BIN)/mypy $(SOURCES)
	$(DEV) generate --check

fmt: setup  ## Format the sources and mend what can be mended
	$(BIN)/ruff check --fix $(SOURCES) helm
	$(BIN)/ruff format $(SOURCES) helm

generate: setup  ## Write what is generated from the code (crds/, docs/, helm/tarsy/, manifests/)
	$(DEV) generate

lock: setup  ## Resolve the dependencies anew and lock them with hashes
	$(BIN)/python -m pip install --quiet uv
	extras="--extra operator --extra google --extra openai --extra anthropic --extra xai --extra langchain"; \
	lock() { $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--no-annotate pyproject.toml "$$@"; }; \
	lock $$extras --output-file requirements/runtime.txt; \
	lock $$extras --extra eval --group test --constraint requirements/runtime.txt --output-file requirements/test.txt
	lock() { $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
		--no-annotate "$$@"; }; \
	lock --group build --constraint requirements/test.txt --output-file requirements/build.txt; \
	lock --group tools --output-file requirements/tools.txt

test:  ## The gate: all tests without a clock, then the promises on real parts (tests/README.md)
	@echo "The tests of the gate. They need no cluster, no containers, no keys: they start Kubernetes, Postgres and a scripted"
	@echo "model on 127.0.0.1. What they need and this machine lacks is fetched or built first, once: Python packages"
	@echo "(2 minutes), the control plane with Go (6 to 13), kubernetes-mcp-server."
	@$(MAKE) --no-print-directory assets
	$(PYTEST) $(PURE) tests/unit tests/store tests/world
	$(PYTEST) $(REAL) tests/cluster tests/e2e tests/web

nightly: assets  ## All other tests, real nodes and measured times too; one table at the end
	$(DEV) nightly

shake: assets  ## Run TESTS=... five times on one core, beside two busy loops: a change of tests/{cluster,e2e,web} needs it
	@test -n "$(TESTS)" || { echo "shake needs TESTS=..., paths of tests" >&2; exit 2; }
	@export SHAKING=$$$$; \
	for loop in 1 2; do taskset -c 0 bash -c 'while kill -0 $$SHAKING 2>/dev/null; do :; done' & done; \
	for round in 1 2 3 4 5; do taskset -c 0 $(PYTEST) $(TESTS); done

test-kind: setup  ## Image, chart and a real Alertmanager on a kind cluster; says so where there is no engine
	dev/kind/test.sh

demo: setup  ## Investigate one recorded alert on embedded parts (KEEP=1 leaves it running)
	$(DEV) demo $(if $(KEEP),--keep)

local: assets  ## Start control plane, Postgres and scripted model in the background, for `tarsy operator`
	$(DEV) local up

local-down:  ## End what `make local` or `KEEP=1 make demo` started
	$(DEV) local down
	$(DEV) local --state .demo down

node: setup  ## Start a control plane and one real node in namespaces of their own (root, Debian's containerd)
	$(DEV) node up

node-down:  ## End what `make node` started
	$(DEV) node down

clean:  ## Remove what was installed and made here (caches outside this folder stay)
	-$(DEV) local down
	-$(DEV) local --state .demo down
	-$(DEV) node down
	rm -rf .venv .dev .demo .mypy_cache .pytest_cache .ruff_cache .import_linter_cache dev/node/node_modules
