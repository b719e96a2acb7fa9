# One target per habit. `make demo` and `make test` need nothing beforehand but a Debian 12 machine and root.
.PHONY: help setup demo test scenarios lint format goldens docs cases bench test-cluster test-conformance test-conformance-all test-policy test-policy-laws test-corner-cases test-kernel test-windows manifests lock clean

# What only Windows can import.
WINDOWS_MODULES = $(patsubst src.%.py,-m %,$(subst /,.,$(filter-out %/__init__.py,$(wildcard src/windlass/host/windows/*.py)) src/windlass/channels/named_pipes.py))

# Python programs without the ending .py, which mypy does not find itself.
PYTHON_TOOLS = $(shell grep -ls "^\#!.*python" tools/*)

help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F '|' '{ printf "%-20s %s\n", $$1, $$2 }'

setup: ## install what is missing, and the command .venv/bin/windlass
	@tools/setup

demo: setup ## run a tour: three Nodes with real Open vSwitch on this machine, and probes with real packets
	@tools/demo

test: setup ## run all tests; those that need root or Open vSwitch are skipped without them
	.venv/bin/python -m pytest -q

scenarios: setup ## run every scenario, with real packets
	.venv/bin/windlass lab run scenarios/ --jobs $(or $(JOBS),1) $(if $(RESULTS),--json $(RESULTS))

lint: setup ## check formatting, lint, types, layers, generated pages
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/mypy --config-file tests/mypy.ini tests tools $(PYTHON_TOOLS)
	.venv/bin/mypy --platform win32 --cache-dir .mypy_cache/windows --follow-imports=silent $(WINDOWS_MODULES)
	.venv/bin/lint-imports --no-cache
	.venv/bin/python tools/generate-docs --check

format: setup ## format the code
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

goldens: setup ## rewrite the expected flows and the list of probes; read the diff before you commit it
	WINDLASS_UPDATE_GOLDENS=1 .venv/bin/python -m pytest -q tests/pipeline tests/scenarios

docs: setup ## regenerate the pages that are generated from the code
	.venv/bin/python tools/generate-docs

cases: setup ## regenerate the pages of docs/cases from real traces (a minute, with a lab)
	.venv/bin/python tools/generate-cases

bench: setup ## run the benchmarks, each with its floor
	.venv/bin/windlass bench sync
	.venv/bin/windlass bench services
	.venv/bin/windlass bench cni
	.venv/bin/windlass bench datapath
	.venv/bin/windlass bench continuity
	.venv/bin/windlass bench cluster
	.venv/bin/windlass bench policy
	.venv/bin/windlass bench watch

test-cluster: setup ## run tests and scenarios with a real API server, built once for a machine (minutes)
	tools/test-cluster

test-conformance: setup ## run Kubernetes' own Conformance tests of the network, in encap and noEncap mode, on whole clusters (minutes)
	.venv/bin/python tools/test-conformance

test-conformance-all: setup ## run other network tests without special requirements, on four Nodes in three zones (minutes)
	.venv/bin/python tools/test-conformance --suite others

test-policy: setup ## run three suites of tests about policies, on a whole cluster (an hour)
	.venv/bin/python tools/test-policy

test-policy-laws: setup ## compare 10,000 random sets of policies with the oracle, and 100,000 verdicts with cyclonus (a quarter of an hour)
	@tools/build-cyclonus || [ $$? = 3 ]
	WINDLASS_POLICY_SETS=10000 .venv/bin/python -m pytest -q -rs --timeout 3600 tests/policy/test_cyclonus.py tests/pipeline/test_policy_flows.py

test-corner-cases: setup ## test corner cases of the container runtime and killed components, on a whole cluster (minutes)
	tools/test-corner-cases

test-kernel: setup ## run a few scenarios on the kernel datapath, in an emulated machine (minutes)
	tools/test-kernel
	tools/test-kernel --list edges

test-windows: setup ## test the Windows Node under Wine: the real Open vSwitch for Windows, Windows' own Python (builds once, minutes)
	tools/test-windows

manifests: setup ## render the chart into deploy/manifests (builds Helm once for a machine, minutes)
	tools/build-helm
	.venv/bin/python tools/render-manifests

lock: ## resolve the dependencies into requirements.lock, and those of the agent into requirements-agent.lock
	.venv/bin/python -m pip install --quiet pip-tools
	.venv/bin/pip-compile --quiet --upgrade --extra lab --extra dev --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o requirements.lock pyproject.toml
	.venv/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe -c requirements.lock \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o requirements-agent.lock pyproject.toml
	.venv/bin/pip-compile --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe \
	  --no-emit-index-url --no-emit-find-links --no-emit-trusted-host -o requirements-windows.lock requirements-windows.in

clean: ## remove what setup and the tests created here
	rm -rf .venv build .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
