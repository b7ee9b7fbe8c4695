# StratosServe: one command each for installing, running, checking and testing. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
# Installs in seconds where it is on the path; `make run UV=` takes pip all the same.
UV ?= $(shell command -v uv)
# More arguments for `uv pip install` or `pip install`, for example an index that has a CPU build of torch.
PIP_ARGS ?=
# Arguments for `stratos up`, for example: make run UP="--decode 2 --port 9000"
UP ?=
# What `make run` serves: the base, and beside it the model that calls functions, with one worker and a small KV pool.
# Flags of models replace it.
SHIPPED := --model models/base --model models/tools --workers tools=0+1:96MiB
# What `make images` builds with, and its arguments, for example: make images IMAGES="--only gateway --tag v1"
BUILDER ?= docker build
IMAGES ?=
# Arguments for pytest, for example: make test-unit TESTS="-k scheduler"
TESTS ?=
CORES := $(shell getconf _NPROCESSORS_ONLN)
# Two processes more than cores, since many tests wait for others, and at most 8: each takes up to 2 GB. In the order of
# tests/conftest.py, and half of them for what waits (tests/support/shared_platforms.py).
XDIST ?= -n $$(( $(CORES) < 6 ? $(CORES) + 2 : 8 )) --dist loadfile --no-loadscope-reorder

VENV := .venv
BIN := $(VENV)/bin
# What running needs, and what tests and checks need: named after the extras of pyproject.toml.
LOCAL := $(VENV)/.installed-local
DEV := $(VENV)/.installed-dev
NATIVE := libs/stratos/engine/native
NATIVE_SOURCES := $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h $(NATIVE)/build.py $(NATIVE)/isa.py)
# The fastest kernels that this machine can run, and those of every instruction set.
KERNELS := $(VENV)/.kernels
ALL_KERNELS := $(VENV)/.kernels-all
BUILD_KERNELS := PYTHONPATH=libs $(BIN)/python -m stratos.engine.native.build

# Many container images forbid it; then every process, and every test run, would compile torch and our own code again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup run test test-unit test-thorough test-slow test-integration test-promises test-monitoring test-clients \
  test-ray client-packages pytest check fmt proto proto-check manifests bench bench-compare quality reproduce chaos speculation images e2e clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' Makefile

setup: $(DEV) $(ALL_KERNELS) ## Create .venv and install everything into it (only when something changed)

$(BIN)/python:
	@PYTHON="$(PYTHON)" UV="$(UV)" bash scripts/setup_env.sh $(VENV)

$(LOCAL) $(DEV): $(VENV)/.installed-%: pyproject.toml constraints.txt scripts/setup_env.sh | $(BIN)/python
	@PYTHON="$(PYTHON)" UV="$(UV)" PIP_ARGS="$(PIP_ARGS)" bash scripts/setup_env.sh $(VENV) $*

# Needs no installed package, so `run` compiles while it installs.
$(KERNELS): $(NATIVE_SOURCES) | $(BIN)/python
	@$(BUILD_KERNELS) && touch $@

$(ALL_KERNELS): $(NATIVE_SOURCES) | $(BIN)/python
	@$(BUILD_KERNELS) --all && touch $@ $(KERNELS)

run: ## Start the whole platform on this machine (Ctrl-C stops it); installs what running needs
	@$(MAKE) --no-print-directory -j2 $(LOCAL) $(KERNELS)
	@exec $(BIN)/stratos up $(if $(filter --model --model=% --speculative-config%,$(UP)),,$(SHIPPED)) $(UP)

# Side by side: kernels are compiled while packages are installed; the checks take one core for a minute or two after a
# clone, and the first tests mostly wait.
test: ## Everything that must pass: checks and all tests
	@$(MAKE) --no-print-directory -j2 setup
	@$(MAKE) --no-print-directory -j2 check pytest
	@$(MAKE) --no-print-directory test-promises

# One torch thread per test process: more of them than cores wait for each other.
pytest:
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) $(TESTS)

# Bounds of time: one test after another, with nothing beside them. A figure over its bound is measured a second time.
# Only files that have some are collected.
PROMISES = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m promise $(shell grep -rlw promised tests --include='test_*.py')
test-promises: setup ## Bounds of time that users are promised, on an otherwise idle machine
	@$(PROMISES) || { echo "==> those that failed, once more"; $(PROMISES) --last-failed --last-failed-no-failures none; }

test-unit: setup ## Unit tests only
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) tests/unit $(TESTS)

test-thorough: setup ## Property tests with all their examples, and what is slow: minutes longer
	@HYPOTHESIS_PROFILE=thorough OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) tests/unit $(TESTS)
	@$(MAKE) --no-print-directory test-slow

speculation: setup ## The whole matrix in which drafts must change no bit, planted errors included: minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(XDIST) -m "matrix or slow or not slow" tests/conformance/test_speculation.py tests/unit/engine/speculation tests/integration/platform/test_drafting_fleet.py $(TESTS)

# Many of them kill processes under load: one that fails beside others is tried once more with the machine to itself, and
# both outcomes are shown.
SLOW = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow tests
test-slow: setup ## What is too slow for `make test`: a quarter of an hour
	@$(SLOW) $(XDIST) || { echo "==> those that failed, alone"; $(SLOW) -n 0 --last-failed --last-failed-no-failures none; }

test-integration: setup ## Tests with real processes and real gRPC
	@$(BIN)/python -m pytest tests/integration tests/conformance $(TESTS)

# Debian has it as a package, PyPI does not: it is no part of `make test`, and fails without it.
test-monitoring: setup ## Dashboards, rules and alerts in a real Prometheus, which has to be installed
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m monitoring tests/integration $(TESTS)

# Their pins may collide with ours, so they are installed beside them; the agents need node and npm.
AGENTS := @openai/codex@0.171.0 @anthropic-ai/claude-code@2.1.197 @grafana/schema@13.2.3 typescript@5.9.3
client-packages: # What test-clients installs beside ours
	@for env in .venv-clients .venv-clients-2 .venv-clients-3; do \
	  test -x $$env/bin/python || $(PYTHON) -m venv $$env; \
	  $$env/bin/pip install -q -r tests/clients/requirements/$${env#.}.txt || exit 1; done
	@npm install --silent --no-audit --no-fund --prefix .agents $(AGENTS)

test-clients: setup client-packages ## Other makers' SDKs, coding agents, schemathesis, Envoy and Grafana's types against ours
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m clients tests/clients $(TESTS)

# Ray is installed for these tests alone: neither `make run` nor `make test` needs it.
test-ray: setup ## Files of requests on a Ray cluster of three nodes on this machine: minutes
	@PYTHON="$(PYTHON)" UV="$(UV)" PIP_ARGS="$(PIP_ARGS)" bash scripts/setup_env.sh $(VENV) ray
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m ray tests/integration/offline $(TESTS)

check: setup proto-check ## Lint, format, types, import rules, Dockerfiles, protos
	@echo "==> ruff"; $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> mypy"; $(BIN)/mypy
	@echo "==> import rules"; $(BIN)/lint-imports
	@echo "==> hadolint"; $(BIN)/hadolint deploy/images/*.Dockerfile
	@echo "==> buf"; $(BIN)/buf lint && $(BIN)/buf format --diff --exit-code
	@echo "==> chart"; $(BIN)/python -m scripts.chart.generate_dashboards --check && $(BIN)/python -m scripts.chart.generate_schema --check && $(BIN)/python -m scripts.chart.render_manifests --check

fmt: setup ## Format Python and protos
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format . && $(BIN)/buf format -w

proto: setup ## Regenerate libs/stratos/api from protos/
	@PYTHON=$(BIN)/python bash scripts/generate_protos.sh libs

proto-check: setup ## Fail when libs/stratos/api is not what protos/ says
	@echo "==> generated stubs"; PYTHON=$(BIN)/python bash scripts/check_protos.sh

manifests: setup ## Rewrite the schema of the chart's values, and deploy/k8s; by helm, or the package helm-python-sdk
	@$(BIN)/python -m scripts.chart.generate_dashboards && $(BIN)/python -m scripts.chart.generate_schema && $(BIN)/python -m scripts.chart.render_manifests

bench-compare: setup ## CPU time of decode steps and sampling against commit REF, by turns; fails where this tree is slower (BENCH)
	@test -n "$(REF)" || { echo "which commit? make bench-compare REF=main"; exit 2; }
	@$(BIN)/python -m scripts.bench.regressions --ref "$(REF)" $(BENCH)

bench: setup ## Measure on an idle machine: gateway and engine side by side, then what each optimisation gains
	@$(BIN)/python -m scripts.bench.whole_platform --out benchmarks/results/platform-cpu.json
	@$(BIN)/python -m scripts.bench.ablation --out benchmarks/results/ablation-cpu.json $(BENCH)

quality: setup ## What every scheme of weights and KV costs the shipped model, and saves: ten minutes (QUALITY="--no-sweep")
	@$(BIN)/python -m scripts.bench.quality --out benchmarks/results/quality-2core-cpu.json --plot docs/pictures/quality.svg $(QUALITY)

# REPRODUCE="continuous-batching --seed 1": rows by name, and other arguments.
reproduce: setup ## Published claims recomputed and measured, into build/reproduce (FULL=1: 90 minutes; GPU=1: on this GPU, too)
	@$(BIN)/stratos reproduce $(if $(FULL),--full) $(if $(GPU),--gpu) $(REPRODUCE)

# CHAOS_REPORT=PATH.json writes the report there, and a page beside it.
chaos: setup ## Kill and stop processes under streams, Redis and the object store gone: half an hour or more
	@CHAOS_REPORT=$(CHAOS_REPORT) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m chaos tests/chaos $(TESTS)

images: ## Build the container images, and lists of what they hold into build/sbom (BUILDER, IMAGES)
	@$(PYTHON) -m scripts.images.build_images --builder "$(BUILDER)" $(IMAGES)

# What it takes, and what a cluster of kind gives it: docs/operations.md.
e2e: $(DEV) ## Install the chart on the cluster of KUBECONFIG and try it (ONLY=short: minutes, one node; ONLY=2: one point)
	@$(BIN)/python -m $(if $(ONLY),pytest -m e2e tests/e2e -s -k "$(if $(filter short,$(ONLY)),test_short,test_point_$(ONLY)_)",tests.e2e.lanes) $(TESTS)

clean: ## Remove .venv, caches and the data directory of `make run`
	rm -rf $(VENV) $(NATIVE)/*.so .stratos .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
