# `make help` lists the targets. What needs .venv sets it up.
#
# CONFIG precedes Metaflow's `run`, where it requires --config and --config-value, and ARGS follows it:
#   make bench CONFIG='--config-value set "suites=[scaling] measure.rounds=20"' ARGS=--dry-run
VENV := .venv
SETUP := tools/setup_venv.sh $(VENV)
# Metaflow's local @parallel starts `python` from PATH: it must be the environment's.
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
PYTEST := $(RUN):/usr/sbin:/sbin python -m pytest
MKDOCS := NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
PARALLEL := -n auto --durations 15

.PHONY: help train bench check test test-one test-slow test-long test-drills test-system test-system-drills campaign lint docs clean

help:
	@echo "make train        train the default model on this machine, and draw a card"
	@echo "make bench        run the default benchmark on this machine, with its baseline, and draw its card"
	@echo "make check        linters, types, import contracts, and the tests that start no process: while you work"
	@echo "make test-one     one file or test, in one process: make test-one T=tests/data/test_sampler.py"
	@echo "make test         the tests that need only the package index"
	@echo "make test-slow    whole jobs and benchmarks from end to end, which need no more than that"
	@echo "make test-drills  faults in real gangs, one after the other, because they are judged by time"
	@echo "make test-system  the tests that need Debian packages or root (chromium)"
	@echo "make test-long    test-slow and test-system in one run"
	@echo "make test-system-drills  faults of networks and disks in real gangs, which need root"
	@echo "make campaign     as root: full counts of the slow campaigns, every drill, and faults at random times for 20 minutes"
	@echo "make lint         ruff, mypy, import-linter, and the site of docs/ with its links"
	@echo "make docs         build the site of docs/ into build/docs"
	@echo "CONFIG='--config-value set \"KEY=VALUE ...\"' precedes Metaflow's run in train and bench, ARGS follows it."
	@echo "In all other targets ARGS are pytest's."

train: $(VENV)/.runtime
	$(RUN) python flows/train_flow.py $(CONFIG) run $(ARGS)
	@echo "These commands need the environment: . $(VENV)/bin/activate"

bench: $(VENV)/.bench
	$(RUN) python flows/benchmark_flow.py $(CONFIG) run $(ARGS)
	@echo "To look at its card first run: . $(VENV)/bin/activate"

check: lint
	$(PYTEST) -m "not slow and not system and not processes" -n auto $(ARGS)

test: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) $(ARGS)

test-one: $(VENV)/.dev
	$(PYTEST) -m "" -v $(T) $(ARGS)

test-slow: $(VENV)/.dev
	$(PYTEST) -m "slow and not alone" $(PARALLEL) $(ARGS)

test-system: $(VENV)/.dev
	$(PYTEST) -m "system and not alone" $(PARALLEL) $(ARGS)

# Both in one run: neither waits for the longest test of the other.
test-long: $(VENV)/.dev
	$(PYTEST) -m "(slow or system) and not alone" $(PARALLEL) $(ARGS)

test-drills: $(VENV)/.dev
	$(PYTEST) -m "slow and alone" --durations 15 $(ARGS)

test-system-drills: $(VENV)/.dev
	$(PYTEST) -m "system and alone" --durations 15 $(ARGS)

campaign: $(VENV)/.dev
	CONVOY_CAMPAIGN=full $(PYTEST) -m "campaign and not (slow or system)" --timeout=3600 $(ARGS)
	CONVOY_CAMPAIGN=full $(PYTEST) -s -m "slow or system" tests/drills/test_drills.py $(ARGS)
	CONVOY_CAMPAIGN=full $(PYTEST) -m sampled --ignore=tests/drills $(ARGS)
	CONVOY_CAMPAIGN=full $(PYTEST) -s -m slow --timeout=3600 tests/gang/test_script_exits.py $(ARGS)

# mypy's workers have 3 s to start: on a machine too busy for that one process checks all.
lint: $(VENV)/.dev
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) MYPY_NUM_WORKERS=auto mypy || $(RUN) mypy
	$(RUN) lint-imports
	$(RUN) $(MKDOCS)

docs: $(VENV)/.dev
	$(RUN) $(MKDOCS)
	@echo "open build/docs/index.html"

$(VENV)/.runtime: pyproject.toml constraints.txt tools/setup_venv.sh
	$(SETUP)
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt tools/setup_venv.sh
	$(SETUP) "[bench]"
	@touch $@ $(VENV)/.runtime

$(VENV)/.dev: pyproject.toml constraints.txt tools/setup_venv.sh
	$(SETUP) "[dev,peers]"
	@touch $@ $(VENV)/.runtime $(VENV)/.bench

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
