# `make help` lists the targets. Targets that need .venv create it.
#
# Metaflow requires --config and --config-value before `run`, so CONFIG precedes it and ARGS follows it:
#   make bench CONFIG='--config-value set "suites=[scaling] measure.rounds=20"' ARGS=--dry-run
VENV := .venv
SETUP := tools/setup_venv.sh $(VENV)
# Metaflow's local @parallel starts `python` from PATH, which must be the environment's.
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"
PYTEST := $(RUN):/usr/sbin:/sbin python -m pytest
MKDOCS := NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
PARALLEL := -n auto --durations 15
# Terraform's provider, where its registry is out of reach: tools/check_terraform.sh.
export TF_PLUGIN_DIR ?= $(wildcard /opt/tf-plugins)

.PHONY: help train bench check test test-one test-slow test-long test-drills test-system test-system-drills test-infra test-frameworks campaign campaign-examples campaign-samples lint docs clean

help:
	@echo "make train               train the default model on this machine and leave a card"
	@echo "make bench               run the default benchmark on this machine and leave a card"
	@echo "make check               lint, and run the quick tests, which start no process: while you work"
	@echo "make test-one T=TEST     run one file or test: make test-one T=tests/data/test_sampler.py"
	@echo "make test                run the tests that need only the package index"
	@echo "make test-slow           run whole jobs and benchmarks end to end; needs only the package index"
	@echo "make test-drills         inject faults into real gangs, one test at a time because time decides them"
	@echo "make test-system         run the tests that need Debian packages or root (chromium)"
	@echo "make test-system-drills  inject network and disk faults into real gangs; needs root"
	@echo "make test-infra          test infra/: needs Terraform, which tools/check_terraform.sh says how to get"
	@echo "make test-frameworks     test JAX and MLX next to Convoy; installs both into .venv"
	@echo "make test-long           run test-slow and test-system together"
	@echo "make campaign            as root: run the slow campaigns in full, every drill, and random faults for 20 minutes"
	@echo "make lint                run ruff, mypy and import-linter, and build the documentation"
	@echo "make docs                build the documentation into build/docs; broken links are errors"
	@echo "make clean               remove .venv, builds and caches"
	@echo
	@echo "In train and bench, CONFIG='--config-value set \"KEY=VALUE ...\"' comes before Metaflow's run, and ARGS after it."
	@echo "In the other targets ARGS are passed to pytest."

train: $(VENV)/.runtime
	$(RUN) python flows/train_flow.py $(CONFIG) run $(ARGS)
	@echo "These commands need the environment: . $(VENV)/bin/activate"

bench: $(VENV)/.bench
	$(RUN) python flows/benchmark_flow.py $(CONFIG) run $(ARGS)
	@echo "To look at its card first run: . $(VENV)/bin/activate"

check: lint
	$(PYTEST) -m "not slow and not system and not infra and not processes" -n auto $(ARGS)

test: $(VENV)/.dev
	$(PYTEST) $(PARALLEL) $(ARGS)

test-one: $(VENV)/.dev
	$(PYTEST) -m "" -v $(T) $(ARGS)

test-slow: $(VENV)/.dev
	$(PYTEST) -m "slow and not alone" $(PARALLEL) $(ARGS)

test-system: $(VENV)/.dev
	$(PYTEST) -m "system and not alone" $(PARALLEL) $(ARGS)

test-infra: $(VENV)/.dev $(VENV)-checkov/.done
	tools/check_terraform.sh
	$(PYTEST) -m infra -n 4 --durations 15 tests/infra $(ARGS)

test-frameworks: $(VENV)/.frameworks
	$(PYTEST) -m frameworks tests/benchmark/variants $(ARGS)

# One run of both: neither waits for the longest test of the other.
test-long: $(VENV)/.dev
	$(PYTEST) -m "(slow or system) and not alone" $(PARALLEL) $(ARGS)

test-drills: $(VENV)/.dev
	$(PYTEST) -m "slow and alone" --durations 15 $(ARGS)

test-system-drills: $(VENV)/.dev
	$(PYTEST) -m "system and alone" --durations 15 $(ARGS)

# Two targets run in parallel; tests that depend on timing follow, one at a time.
campaign: $(VENV)/.dev
	$(MAKE) --jobs=2 --output-sync=recurse campaign-examples campaign-samples
	CONVOY_CAMPAIGN=full $(PYTEST) -m "sampled and alone" --ignore=tests/drills --timeout=3600 $(ARGS)
	CONVOY_CAMPAIGN=full $(PYTEST) -s -m "slow or system" tests/drills/test_drills.py $(ARGS)
	CONVOY_CAMPAIGN=full $(PYTEST) -s -m slow --timeout=3600 tests/gang/test_script_exits.py $(ARGS)
	CONVOY_CAMPAIGN=full $(MAKE) test-infra
	$(MAKE) test-frameworks

campaign-examples: $(VENV)/.dev
	CONVOY_CAMPAIGN=full $(PYTEST) -m "campaign and not (slow or system or infra)" --timeout=3600 $(ARGS)

campaign-samples: $(VENV)/.dev
	CONVOY_CAMPAIGN=full $(PYTEST) -m "sampled and not alone and not infra and (not campaign or slow or system)" --ignore=tests/drills --timeout=3600 $(ARGS)

# mypy's workers must start within 3 s; on a machine too busy for that, one process checks everything.
lint: $(VENV)/.dev
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) MYPY_NUM_WORKERS=auto mypy || $(RUN) mypy
	$(RUN) lint-imports
	$(RUN) $(MKDOCS)

docs: $(VENV)/.dev
	$(RUN) $(MKDOCS)
	@echo "open build/docs/index.html"

# checkov wants older versions of what others here need newer.
$(VENV)-checkov/.done: Makefile
	python3 -m venv $(VENV)-checkov
	$(VENV)-checkov/bin/pip install --quiet checkov==3.3.30
	@touch $@

$(VENV)/.runtime: pyproject.toml constraints.txt tools/setup_venv.sh
	$(SETUP)
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt tools/setup_venv.sh
	$(SETUP) "[bench]"
	@touch $@ $(VENV)/.runtime

$(VENV)/.dev: pyproject.toml constraints.txt tools/setup_venv.sh
	$(SETUP) "[dev,peers]"
	@touch $@ $(VENV)/.runtime $(VENV)/.bench

$(VENV)/.frameworks: $(VENV)/.dev
	$(SETUP) "[dev,peers,jax,mlx]"
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
