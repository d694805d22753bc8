# Targets for development. The first use of any of them installs everything into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SEED ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo demo-kafka test test-all test-spark lint check bench bench-compare bench-peers faults docs reference format clean

help:            ## prints this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Slackwater needs Python 3.11 or later: make PYTHON=python3.12 …"; exit 1; }
	@java -version >/dev/null 2>&1 || { echo "Slackwater needs Java 17 or later on the path, because Spark runs on it"; exit 1; }
	@echo "Installing Slackwater and its dependencies into $(VENV), once: about 1.5 GB, most of it Spark; 1 to 5 minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/slackwater prepare || true # optional: starts also work without it, but are slower
	@$(BIN)/python -m compileall -q src tests # the tests start hundreds of processes
	@touch $(READY)
	@echo "Installed: $$($(BIN)/slackwater --version), as $(BIN)/slackwater"

demo: $(READY)   ## computes sessions and tumbling windows over a generated click stream
	@$(BIN)/slackwater demo

demo-kafka: $(READY) ## runs a pipeline from Kafka to Postgres and kills its runner twice
	@$(BIN)/slackwater demo-kafka

# Each pytest worker has one Spark session, one broker and one database. Long test files run first, so that both workers end together.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --randomly-seed=$(SEED) --durations=20 --durations-min=5

test: $(READY)   ## runs at least one test of each promise, two files at a time, in random order (SEED=2 gives another order)
	@SLACKWATER_LAWS_EXAMPLES=5 $(PYTEST) -m "not exhaustive"

test-all: $(READY) ## runs every case of every test; also needs RabbitMQ and Chromium
	@SLACKWATER_TEST_ALL=1 $(PYTEST)

# Another version of PySpark is installed in a separate environment, which uses .venv for all other packages.
# PySpark before 4.1 leaves sockets to the garbage collector, and its Connect client does not support protobuf 7 or later.
VERSION ?= 4.0.5
SPARK_VENV := .venv-spark-$(VERSION)
SPARK_TESTS ?= tests/spark tests/contract/test_nested_values.py tests/contract/test_extreme_times_and_query_values.py tests/e2e/test_spark_connect.py

$(SPARK_VENV)/.ready: $(READY)
	@echo "Installing PySpark $(VERSION) into $(SPARK_VENV), once: about 450 MB"
	@$(PYTHON) -m venv $(SPARK_VENV)
	@$(SPARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark==$(VERSION)' 'protobuf>=5,<7'
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > $$($(SPARK_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/slackwater.pth
	@touch $@

test-spark: $(SPARK_VENV)/.ready ## runs the Spark tests with another version: make test-spark VERSION=4.0.2 (ONLY="-m matrix" runs fewer)
	@SLACKWATER_LAWS_EXAMPLES=10 $(SPARK_VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --randomly-seed=$(SEED) \
	  -W "ignore:unclosed <socket:ResourceWarning" -W ignore::pytest.PytestUnraisableExceptionWarning \
	  $(or $(ONLY),-m "not exhaustive") $(SPARK_TESTS)

lint: $(READY)   ## checks style, types, import contracts and English
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m tools.imports
	@$(BIN)/python -m tools.english
	@found=$$($(BIN)/python -m pytest -qq --collect-only) || { echo "$$found"; exit 1; }

check: lint      ## runs lint and the fast tests
	@$(BIN)/python -m pytest -q tests/unit

bench: $(READY)  ## compares Slackwater with Spark's own stateful operators; RELEASE=0.1.0 keeps the figures
	@$(BIN)/python -m benchmarks.run --json benchmarks/results/latest.json $(if $(RELEASE),--keep $(RELEASE))

bench-compare: $(READY) ## compares two runs: make bench-compare OLD=benchmarks/results/0.1.0.json NEW=benchmarks/results/latest.json
	@$(BIN)/python -m benchmarks.compare_reports $(OLD) $(NEW) $(if $(UNLIKE),--unlike)

bench-peers: $(READY) ## compares Slackwater with Flink and Kafka Streams, which it fetches; needs a JDK
	@$(BIN)/python -m benchmarks.peers --json benchmarks/results/latest-peers.json

faults: $(READY) ## kills a pipeline with SIGKILL at every named step and at random, on one machine and on a cluster; writes docs/faults.md
	@SLACKWATER_KILLS=20 $(BIN)/python -m pytest -q -s tests/e2e/test_run_kill_and_signals.py tests/e2e/test_iceberg_kill.py
	@$(BIN)/python -m tests.e2e.matrices.kill_matrix --events 200000 --random 50 --write docs/faults.md
	@$(BIN)/python -m tests.e2e.matrices.cluster_fault_matrix --kills 5 --write docs/faults.md
	@$(BIN)/python -m tests.e2e.matrices.cluster_fault_matrix --bucket-only --kills 50 --faults 200 --write docs/faults.md

docs: $(READY)   ## builds the docs as a site: open site/index.html
	@$(BIN)/python -m zensical build --strict --clean
	@echo "site/index.html"

reference: $(READY) ## generates the pages and pictures of docs/ that come from the code
	@$(BIN)/python -m docgen

format: $(READY) ## formats the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:           ## removes the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
