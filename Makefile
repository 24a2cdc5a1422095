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
# Three files at once on two cores, because tests wait for servers a quarter of their time. Each worker has a control
# plane, a Postgres and a nursery of operators of its own.
PARALLEL := -n 3 --dist loadfile
# The files with tests of a mark: each worker would read all others in vain, for half a minute.
MARKED = $$(grep -rl "mark\.$(1)" tests --include='test_*.py' | sort)

.PHONY: help setup assets lint fmt generate lock test test-unit test-store test-world test-cluster test-e2e test-slow \
	test-kind test-node nightly bench demo local local-down node node-down clean

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
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy $(SOURCES)
	$(DEV) generate --check

fmt: setup  ## Format the sources and mend what can be mended
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

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

test:  ## All tests that fit into minutes: unit, store, world, cluster, end to end
	@echo "All tests but the slow ones: 7 to 8 minutes on two idle cores. They need no cluster, no containers, no keys: they"
	@echo "start Kubernetes, Postgres and a scripted model on 127.0.0.1. What they need and this machine lacks is fetched or"
	@echo "built first, once: Python packages (2 minutes), the control plane with Go (6 to 13), kubernetes-mcp-server."
	@$(MAKE) --no-print-directory assets
	$(PYTEST) $(PARALLEL) tests

test-unit: setup  ## The tests that need nothing but Python
	$(PYTEST) tests/unit

test-store: setup  ## The tests on a real Postgres
	$(PYTEST) $(PARALLEL) tests/store

test-world: assets  ## The tests of the loopback world itself, with the real SDKs
	$(PYTEST) tests/world

test-cluster: assets  ## The tests on a real API server
	$(PYTEST) $(PARALLEL) tests/cluster

test-e2e: assets  ## The operator as a process, on real parts
	$(PYTEST) $(PARALLEL) tests/e2e

nightly: NODE_TESTS := node
nightly: test-node  ## All tests on a real node: `make test-node` and those that take longer

NODE_TESTS := node and not nightly
test-node: setup  ## The tests on a real node, made here; says what is missing where there is no root or no containerd
	@lacks=$$($(DEV) node needs); if [ -n "$$lacks" ]; then echo "test-node DID NOT RUN: it needs $$lacks"; else \
		$(DEV) assets >/dev/null && $(PYTEST) tests/node -m "$(NODE_TESTS)"; fi

bench: assets  ## Figures of speed: what TARSy adds to models and tools, and how time grows (four minutes)
	$(BIN)/python -m bench

test-slow: assets  ## The suites that take minutes: operators killed at failpoints and at random, all states of the pages
	$(PYTEST) $(PARALLEL) -m "slow and not measured" $(call MARKED,slow)
	$(PYTEST) -m measured $(call MARKED,measured)

test-kind: setup  ## Image, chart and a real Alertmanager on a kind cluster; says so where there is no engine
	dev/kind/test.sh

demo: assets  ## Investigate one recorded alert on embedded parts (KEEP=1 leaves it running)
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
