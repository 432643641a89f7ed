# Every target makes its own surroundings first: python3 (3.11 or later, with venv), git and make are all it takes.
# .uv/ holds the installer, .venv/ the hash-locked dependencies and this checkout; both are rebuilt when stale.

PYTHON ?= python3
UV_VERSION := 0.13.9
UV := .uv/bin/uv
BIN := .venv/bin
ARGS ?=
MINUTES ?= 10
# Most tests wait for servers, so two more at a time than there are cores; four at most, because each may start a cluster
# and ten processes. In the order of their folders: files of a few long tests first, the many quick ones fill the end.
SIDE_BY_SIDE = --numprocesses $$(n=$$(nproc); echo $$((n < 2 ? n + 2 : 4))) --dist loadfile --no-loadscope-reorder

# Never fetch an interpreter: the one on this machine is the one that is tested.
export UV_PYTHON_DOWNLOADS := never
# Trust whom the machine trusts: behind a proxy that is not whom the installer brings along.
export UV_SYSTEM_CERTS ?= true

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-project up test check e2e sim chaos soak conformance bench bench-streams fmt lock clean

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r t d; do printf '%-20s %s\n' "$$t" "$$d"; done

demo: .venv/.ready ## one run from task to verdict, offline, through five real services (MODEL=real: with your model)
	@$(BIN)/python -m deploy.dev.demo $(if $(MODEL),--model $(MODEL)) $(ARGS)

demo-project: .venv/.ready ## from a brief to seven verified, committed features, over many sessions, offline (90 s; ARGS=--short: 20 s)
	@$(BIN)/python -m deploy.dev.demo_long $(ARGS)

up: .venv/.ready ## everything on this machine (ARGS="--port 9000")
	@$(BIN)/perdure up $(ARGS)

test: check ## check, then the rest of the test suite, its files side by side
	$(BIN)/pytest -q $(SIDE_BY_SIDE) --ignore tests/tidy $(ARGS)

check: .venv/.ready ## lint, format, import contracts, strict types and the rules of tests/tidy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/basedpyright
	$(BIN)/pytest -q tests/tidy

e2e: .venv/.ready ## only the tests with five real processes
	$(BIN)/pytest -q tests/e2e $(ARGS)

sim: .venv/.ready ## seeded schedules of faults in virtual time (SEED=17 for one; MINUTES=10; ARGS="--points all")
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),$(or $(ARGS),--minutes $(MINUTES)) --lanes $$(nproc))

chaos: .venv/.ready ## faults at random on a real cluster under load (MINUTES=10 ARGS="--seed 7 --nodes 1")
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

soak: .venv/.ready ## hostile workspaces and requests, long contexts, flaky providers, 20,000 streams, runs and schedules, 1,000 clients, crash points, then a long chaos (MINUTES=60)
	FUZZ_OPERATIONS=1000000 SWAPPED_ATTEMPTS=10000 EXAMPLES=1000 $(BIN)/pytest -q -o faulthandler_timeout=3600 \
	  tests/unit/test_toolhost_guard.py tests/unit/test_toolhost_guard_fuzz.py tests/unit/test_toolhost_search.py \
	  tests/unit/test_patches.py tests/unit/test_toolhost_patching.py tests/unit/test_toolhost_edits.py \
	  tests/unit/test_toolhost_git_diffs.py tests/unit/test_mcp_schemas.py
	SHORT_COMMANDS=1000 $(BIN)/pytest -q -o faulthandler_timeout=3600 tests/unit/test_toolhost_processes.py
	HUGE_MIB=2048 $(BIN)/pytest -q tests/service/test_toolhost_process_cases.py -k huge_output
	FLAKY_TRIES=100 $(BIN)/pytest -q -o faulthandler_timeout=3600 tests/e2e/test_silences_and_crashes.py -k fails_at_random
	EXAMPLES=20000 $(BIN)/pytest -q -o faulthandler_timeout=7200 tests/unit/test_executor_*.py
	SCHEDULES=2000 SCHEDULES_S=60 $(BIN)/pytest -q -s -o faulthandler_timeout=3600 tests/service/test_schedule_load.py
	SOAK_PROJECTS=1 $(BIN)/pytest -q -o faulthandler_timeout=3600 tests/e2e/test_demo_project.py tests/e2e/test_moved_project.py
	ITEMS=5000 $(BIN)/pytest -q -s -o faulthandler_timeout=7200 tests/e2e/test_projects_items.py
	LONG_RUN=400 $(BIN)/pytest -q -s -o faulthandler_timeout=3600 tests/e2e/test_context.py
	CRASH_POINTS=all $(BIN)/pytest -q -o faulthandler_timeout=3600 tests/e2e/test_crash_points.py tests/e2e/test_poison.py
	FUZZ_S=600 MUTATIONS=100000 $(BIN)/pytest -q -o faulthandler_timeout=3600 \
	  tests/service/test_gateway_schemathesis.py tests/service/test_gateway_mutations.py
	$(BIN)/python -m tests.sim --quiet --points all --freezes all --troubles all --schedules 20000 --lanes $$(nproc)
	$(BIN)/python -m tests.sim --quiet --points cancel,pause,message,recall --variants 22 --lanes $$(nproc)
	$(BIN)/python -m tests.sim --weeks 3
	$(BIN)/python -m tests.bench.streams
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(ARGS)

conformance: .venv/.ready ## the public MCP conformance suite against our client (needs npm and its registry; ARGS="--only tools_call")
	@$(BIN)/python -m tests.conformance $(ARGS)

bench: .venv/.ready ## what Perdure costs against the raw bus
	@$(BIN)/python -m tests.bench $(ARGS)

bench-streams: .venv/.ready ## a gateway with 1,000 clients: how late events come, and what it takes
	@$(BIN)/python -m tests.bench.streams

fmt: .venv/.ready ## format, and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: .uv/$(UV_VERSION) ## resolve pyproject.toml anew into requirements.lock
	@printf '%s\n' \
	  '# All dependencies of perdure[all,dev] for every platform, with hashes and without index addresses.' \
	  '# Made by "make lock" from pyproject.toml; do not edit.' > requirements.lock.new
	@$(UV) pip compile --quiet pyproject.toml --extra all --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-annotate >> requirements.lock.new
	@mv requirements.lock.new requirements.lock

clean: ## remove what this Makefile made, and the caches; keeps .perdure
	@rm -rf .venv .uv .pytest_cache .ruff_cache .hypothesis .grimp_cache .import_linter_cache bench-results build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.uv/$(UV_VERSION):
	@command -v $(PYTHON) >/dev/null || { echo 'set-up: no $(PYTHON) found; Perdure needs Python 3.11 or later: apt-get install python3 python3-venv' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "set-up: $$($(PYTHON) --version 2>&1) is too old; Perdure needs Python 3.11 or later: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo 'set-up: $(PYTHON) cannot make virtual environments: apt-get install python3-venv' >&2; exit 1; }
	@echo 'set-up 1/3: uv $(UV_VERSION) into .uv'
	@rm -rf .uv && $(PYTHON) -m venv .uv
	@.uv/bin/pip install -qq --disable-pip-version-check uv==$(UV_VERSION)
	@# Servers that sync each write come next: they would wait for all of the above to reach the disk.
	@sync
	@touch $@

.venv/.ready: .uv/$(UV_VERSION) requirements.lock pyproject.toml
	@echo 'set-up 2/3: locked dependencies into .venv (about 650 MB on disk, once; this needs the network)'
	@test -x .venv/bin/python || $(UV) venv --quiet --clear --python .uv/bin/python .venv
	@$(UV) pip sync --quiet --python .venv --require-hashes requirements.lock
	@echo 'set-up 3/3: this checkout into .venv'
	@$(UV) pip install --quiet --python .venv --no-deps --no-build-isolation --editable .
	@# Servers that sync each write come next: they would wait for all of the above to reach the disk.
	@sync
	@touch $@
