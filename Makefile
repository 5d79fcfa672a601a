# Two commands do most: `make up` runs the product on this machine, `make test` proves it.
# Needs: git, make and Python 3.11 or newer. What else is missing is installed into .venv and .tools.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A distribution's Python is compiled with optimisation, one that was compiled by hand often is not: a third slower in all that is done here.
PYTHON ?= $(shell /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo /usr/bin/python3 || echo python3)
BIN := .venv/bin
TEST_PROCESSES ?= 4
PYTEST_ARGS ?=
# Compiled modules are kept whatever the shell says: without them every process that starts here spends a second or more on compiling.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: up
up: runtime ## run everything here: servers, API, workers, and the main job (PORT, DATA_DIR, ONCE=1, DATABASE_URL, BROKER_URL)
	@exec $(BIN)/controlplane up

.PHONY: doctor
doctor: runtime ## look for what would keep the product from working, and say what to do
	@exec $(BIN)/controlplane doctor

.PHONY: test
test: dev ## run every test, with a PostgreSQL of its own (PYTEST_ARGS="-k word")
	@$(BIN)/pytest -n $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS)

.PHONY: schedules
schedules: dev ## random schedules in one process, every promise checked after each (FIRST=1 COUNT=20000); a failing seed is printed
	@$(BIN)/python -m tests.schedules.run --first $(or $(FIRST),1) --count $(or $(COUNT),20000)

.PHONY: fault-matrix
fault-matrix: dev ## every fault in every operation of a machine's life on every adapter (SEEDS=20, ONLY=bare/wipe)
	@$(BIN)/python -m tests.matrix.run --seeds $(or $(SEEDS),20) --only "$(ONLY)"
	@FAULT_MATRIX=full $(BIN)/pytest tests/matrix/test_bad_inputs.py

.PHONY: work-faults
work-faults: dev ## every fault against jobs and services on the simulator and the Kubernetes emulator (WORK_FAULTS=20 seeds)
	@WORK_FAULTS=$(or $(WORK_FAULTS),20) $(BIN)/pytest -s tests/contract/test_work_under_faults.py

.PHONY: crashes
crashes: dev ## every pass of every crash point, first try, retry and takeover
	@CRASH_PASSES=all $(BIN)/pytest tests/crash/test_crash_points.py tests/crash/test_managed_crash_points.py tests/crash/test_own_kubernetes_crash_points.py -s

.PHONY: kills
kills: dev ## random kill -9 of real workers (KILLS=10000, KILL_SEED=1)
	@KILLS=$(or $(KILLS),10000) KILL_SEED=$(or $(KILL_SEED),1) $(BIN)/pytest tests/crash/test_kills.py -s

.PHONY: fuzz
fuzz: dev ## ten thousand random requests by the OpenAPI document (FUZZ_CASES, FUZZ_SEED)
	FUZZ_CASES=$${FUZZ_CASES:-10000} $(BIN)/pytest -s tests/fuzz/test_api_fuzz.py $(PYTEST_ARGS)

.PHONY: races
races: dev ## the races at full size on real processes, and every provider fault against leaks (some half an hour)
	RACES=full $(BIN)/pytest -s tests/races tests/fuzz/test_leaks.py $(PYTEST_ARGS)

.PHONY: canaries
canaries: dev ## 1,000 machines go from one tenant to another on virtual time; nothing of the first is there for the second (some ten minutes)
	@RACES=full $(BIN)/pytest -s tests/races/test_canaries.py $(PYTEST_ARGS)

.PHONY: added
added: dev ## what we add to the time that a host takes to boot, and to Ironic's, against a plain script (some fifteen minutes, needs the kits)
	@ADDED=1 $(BIN)/pytest -s tests/e2e/test_metal_added.py tests/e2e/test_ironic_added.py $(PYTEST_ARGS)

.PHONY: bench
bench: dev ## every benchmark, one JSON line per figure (some fifteen minutes; docs/scoreboard.md tells what was measured)
	@failed=0; for question in placement api clusters sweep boots controllers deploys kubernetes listening; do $(BIN)/python benchmarks/$$question/bench.py || failed=1; done; exit $$failed

.PHONY: test-slow
test-slow: dev ## the tests that take minutes: another release of Slurm, and one with accounts (as root)
	@CONTROLPLANE_SLOW=1 $(BIN)/pytest -m slow $(PYTEST_ARGS)

.PHONY: test-vm
test-vm: dev ## machines that really boot, under emulation: Redfish, Secure Boot, Ironic (as root; minutes, more the first time)
	@CONTROLPLANE_VM=1 $(BIN)/pytest -s -v tests/vm $(PYTEST_ARGS)

.PHONY: check
check: dev ## everything that can be checked without running the product
	@$(MAKE) --jobs=2 --output-sync=target check-types check-rest

.PHONY: check-types check-rest
check-types:
	$(BIN)/mypy
	$(BIN)/mypy scripts/bootstrap.py

check-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports --no-logo
	$(BIN)/deptry .
	$(BIN)/yamllint --strict .
	$(BIN)/hadolint deploy/Dockerfile
	$(BIN)/compose-lint check --fail-on medium --skip-suppressed --quiet docker-compose.yml
	$(BIN)/shellcheck .ci/run src/controlplane/providers/adapters/slurm/scrub.sh src/controlplane/providers/adapters/slurm/check.sh src/controlplane/boots/scripts/*.sh tests/vm/signed-disc.sh tests/vm/image-disk.sh tests/vm/machine/build.sh tests/vm/machine/init
	$(BIN)/pytest tests/architecture tests/migration

.PHONY: fmt
fmt: dev ## put the code into the house's format
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: lock
lock: ## renew the lock files from pyproject.toml (LOCK_ARGS="--upgrade" or "--upgrade-package name")
	@uv=$$($(PYTHON) scripts/bootstrap.py --uv); \
	compile="$$uv pip compile pyproject.toml --extra embedded --group install --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet $(LOCK_ARGS)"; \
	$$compile --group dev --output-file requirements-dev.lock; \
	$$compile --constraint requirements-dev.lock --output-file requirements.lock

.PHONY: clean
clean: ## remove what was installed and built here; the data directory stays
	rm -rf .venv .tools build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .schemathesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: runtime dev
runtime dev:
	@$(PYTHON) scripts/bootstrap.py $@

.PHONY: states
states: dev ## write docs/states.md from the state tables
	$(BIN)/python -m tests.architecture.test_states
