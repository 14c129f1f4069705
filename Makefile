# `make help` lists the targets. What needs .venv sets it up.
#
# CONFIG stands before Metaflow's `run`, where it wants --config and --config-value, and ARGS after it:
#   make bench CONFIG='--config-value set "suites=[scaling] measure.rounds=20"' ARGS=--dry-run
VENV := .venv
SETUP := tools/setup_venv.sh $(VENV)
# Metaflow's local @parallel starts `python` from PATH: it must be the environment's.
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: help train bench test test-slow test-long test-drills test-system test-system-drills campaign lint clean

help:
	@echo "make train        train the default model on this machine, and leave a card"
	@echo "make bench        the default benchmark on this machine, with its baseline, and its card"
	@echo "make test         the tests that need nothing but the package index"
	@echo "make test-slow    whole jobs and benchmarks from end to end, which need no more than that"
	@echo "make test-drills  faults in real gangs, one after the other: what failed is told by how long things take"
	@echo "make test-system  the tests that need Debian packages or root (chromium)"
	@echo "make test-long    test-slow and test-system in one run"
	@echo "make test-system-drills  faults of networks and disks in real gangs, which only root can put in"
	@echo "make campaign     as root: the full counts of the slow campaigns, every drill, and faults at random times for 20 minutes"
	@echo "make lint         ruff, mypy, import-linter"
	@echo "train, bench:     CONFIG='--config-value set \"KEY=VALUE ...\"' stands before Metaflow's run, ARGS after it"
	@echo "the others:       ARGS are pytest's"

train: $(VENV)/.runtime
	$(RUN) python flows/train_flow.py $(CONFIG) run $(ARGS)
	@echo "These commands need the environment: . $(VENV)/bin/activate"

bench: $(VENV)/.bench
	$(RUN) python flows/benchmark_flow.py $(CONFIG) run $(ARGS)
	@echo "To look at its card first run: . $(VENV)/bin/activate"

test: $(VENV)/.dev
	$(RUN) python -m pytest -n auto --durations 15 $(ARGS)

# Faults are told by time: these tests have the machine to themselves.
DRILLED := tests/drills tests/flows/test_interrupt.py tests/gang/test_scripts.py tests/gang/test_script_exits.py tests/gang/test_supervision.py tests/planner/test_two_ranks.py

test-slow: $(VENV)/.dev
	$(RUN) python -m pytest -m slow -n auto --durations 15 $(addprefix --ignore=,$(DRILLED)) $(ARGS)

test-drills: $(VENV)/.dev
	$(RUN) python -m pytest -m slow --durations 15 $(DRILLED) $(ARGS)

# Drills that need root; networks of which one is slower are told by time too.
DRILLED_BY_ROOT := tests/drills tests/system/test_partition.py tests/system/test_networks.py tests/system/test_exposed.py

test-system: $(VENV)/.dev
	$(RUN):/usr/sbin:/sbin python -m pytest -m system -n auto --durations 15 $(addprefix --ignore=,$(DRILLED_BY_ROOT)) $(ARGS)

test-system-drills: $(VENV)/.dev
	$(RUN):/usr/sbin:/sbin python -m pytest -m system --durations 15 $(DRILLED_BY_ROOT) $(ARGS)

# test-slow and test-system in one: neither waits for the longest test of the other.
test-long: $(VENV)/.dev
	$(RUN):/usr/sbin:/sbin python -m pytest -m "slow or system" -n auto --durations 15 $(addprefix --ignore=,$(DRILLED) $(DRILLED_BY_ROOT)) $(ARGS)

campaign: $(VENV)/.dev
	$(RUN) CONVOY_CAMPAIGN=full python -m pytest --timeout=3600 tests/data/test_sampler.py tests/data/test_permutation.py \
		tests/data/test_sequences.py tests/data/test_sources.py tests/data/test_tokenizer.py tests/model/test_hf.py tests/job/test_lineage.py tests/storage/test_s3_faults.py tests/job/events/test_types.py \
		tests/checkpoint/test_corruption.py tests/checkpoint/test_reshard.py tests/checkpoint/state/test_layout.py \
		tests/checkpoint/state/test_values.py tests/checkpoint/save/test_queue.py tests/checkpoint/writer/test_retention.py \
		tests/checkpoint/test_protocol.py tests/checkpoint/test_chunks.py tests/checkpoint/test_format.py \
		tests/checkpoint/test_crash.py tests/checkpoint/test_outside.py tests/report/analysis/test_checkpoints.py tests/report/analysis/test_incidents.py \
		tests/report/analysis/test_goodput.py tests/report/analysis/test_ledger.py tests/gang/diagnosis/test_verdict.py tests/gang/network/test_failure_detector.py tests/gang/diagnosis/test_stragglers.py \
		tests/gang/diagnosis/test_node_health.py tests/training/measure/test_health_check.py tests/planner $(ARGS)
	$(RUN):/usr/sbin:/sbin CONVOY_CAMPAIGN=full python -m pytest -s -m "slow or system" tests/drills/test_drills.py $(ARGS)
	$(RUN):/usr/sbin:/sbin CONVOY_CAMPAIGN=full python -m pytest -m sampled --ignore=tests/drills $(ARGS)
	$(RUN) CONVOY_CAMPAIGN=full python -m pytest -s -m slow --timeout=3600 tests/gang/test_script_exits.py $(ARGS)

# mypy's workers have 3 s to start: on a machine too busy for that one process checks all.
lint: $(VENV)/.dev
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) MYPY_NUM_WORKERS=auto mypy || $(RUN) mypy
	$(RUN) lint-imports

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
