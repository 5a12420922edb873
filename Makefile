# Two commands do everything: `make demo` and `make test`. Each makes what it needs first.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# What Python and pytest have compiled is kept beside the sources, whatever the environment says: hundreds of processes of the tests,
# and the Python workers of Spark, would compile it again.
unexport PYTHONDONTWRITEBYTECODE

# The Java that set-up found goes first: JAVA_HOME may point to an older one, and Spark would start that.
# PYTHON is the user's, and goes to tools/ as it is: the Python that .venv, or an environment of test-versions, is made with.
RUN := JAVA_HOME="$$(cat .venv/java-home)" .venv/bin/python
PYTEST := $(RUN) -m pytest
MKDOCS := NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs
# Two processes, where tests wait or need one core; those on Spark share one session each.
BESIDE := -n 2 --dist worksteal

comma := ,
say = @printf '\n== %s\n' "$(1)"

.PHONY: help
help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup:  ## Make .venv with everything, and see to a Java >= 17; done in no time when all is there.
	@bash tools/setup.sh

.PHONY: demo
demo: setup  ## Run both jobs on a year of real flights; make demo ARGS="--month 1" is a short run.
	$(call say,demo: examples/demo.py $(ARGS))
	@$(RUN) examples/demo.py $(ARGS)

.PHONY: test
test: setup  ## Set up, then lint, types, doctests and all tests but the long proofs.
	@$(MAKE) -j 2 --output-sync=target types doctests lint
	$(call say,tests: those without Spark)
	@$(PYTEST) $(BESIDE) -m "not spark and not crash and not services and not cluster and not object_stores and not browser"
	$(call say,tests: those on Spark)
	@$(PYTEST) $(BESIDE) -m "spark and not crash and not services and not cluster and not object_stores" --durations 10 tests/spark

.PHONY: test-wheel
test-wheel: setup  ## Install the wheel with the lowest versions into a clean environment, run the README there, and ship code to a cluster.
	$(call say,wheel: the README with the lowest versions that pyproject.toml allows, and code on its way to a cluster)
	@$(PYTEST) -n 2 --dist loadfile tests/wheel.py tests/shipped_code.py

SPARKS ?= 4.1 4.2
TESTS ?=

.PHONY: test-versions
test-versions: setup  ## Run the tests with other versions; make test-versions SPARKS=4.3 PYTHON=python3.13 PACKAGES="pandas>=3" TESTS=tests/columnar, or PART=1/2
	$(call say,versions: the tests with PySpark $(SPARKS)$(and $(PYTHON),$(comma) $(PYTHON))$(and $(PACKAGES),$(comma) $(PACKAGES)))
	@PART="$(PART)" bash tools/versions.sh "$(SPARKS)" $(TESTS)

.PHONY: test-delta
test-delta: setup  ## Run the tests of DeltaSink, on Spark 4.1 with Delta, which Maven copies.
	$(call say,delta: tables of Delta on Spark 4.1)
	@bash tools/delta.sh

.PHONY: test-fast
test-fast: setup  ## Run the tests that need neither Spark nor a long time.
	$(call say,fast tests: no Spark and no long proofs)
	@$(PYTEST) $(BESIDE) -m "not spark and not crash and not services and not cluster and not object_stores and not browser"

.PHONY: test-browser
test-browser: setup  ## Run the tests of the live page in a real browser; as root, install chromium if there is none.
	@if ! command -v chromium chromium-browser google-chrome >/dev/null && [[ "$$(id -u)" == 0 ]]; then \
		apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	fi
	$(call say,browser: the live page in headless chromium)
	@$(PYTEST) -m browser tests/test_page.py

PART ?= 1/1

.PHONY: services
services: setup  ## Start PostgreSQL, Redis, RabbitMQ and Kafka on loopback, with data of their own; as root, install what is missing.
	@bash tools/services.sh start

.PHONY: services-stop
services-stop:  ## Stop what `make services` started, and remove its data.
	@bash tools/services.sh stop

.PHONY: test-services
test-services: setup  ## Run the tests that need the servers of `make services`; PART=2/3: all without kills, and a part of the kills.
	@bash tools/services.sh check
	$(call say,services: the tests against PostgreSQL, Redis, RabbitMQ and Kafka)
	@$(PYTEST) -m "services and not crash"
	$(call say,services: part $(PART) of the kills)
	@$(PYTEST) --part $(PART) -m "services and crash" --timeout 1800 --durations 10

.PHONY: cluster
cluster: setup  ## Start a standalone cluster of Spark on loopback: a master and two workers, from the jars of pyspark.
	@bash tools/cluster.sh start

.PHONY: cluster-stop
cluster-stop:  ## Stop what `make cluster` started, and remove its data.
	@bash tools/cluster.sh stop

.PHONY: test-cluster
test-cluster: setup  ## Run the tests that need `make cluster`, and PostgreSQL of `make services`; PART=2/3: a part of them.
	@bash tools/cluster.sh check
	@bash tools/services.sh check
	$(call say,cluster: part $(PART) of the tests on a standalone cluster)
	@$(PYTEST) --part $(PART) -m cluster --timeout 1800 --durations 10 -rP tests/cluster

STORES ?= hdfs s3 yarn

.PHONY: object-stores
object-stores: setup  ## Start HDFS, a server of S3 and YARN on loopback, copied by Maven (750 MB); make object-stores STORES=hdfs for a part.
	@bash tools/object_stores.sh start $(STORES)

.PHONY: object-stores-stop
object-stores-stop:  ## Stop what `make object-stores` started, and remove its data.
	@bash tools/object_stores.sh stop

.PHONY: test-object-stores
test-object-stores: setup  ## Run the tests that need `make object-stores services cluster`: checkpoints and outputs on HDFS and on S3; PART=2/3: a part.
	@bash tools/object_stores.sh check
	@bash tools/services.sh check
	@bash tools/cluster.sh check
	$(call say,object stores: part $(PART) of the tests on HDFS and on S3)
	@$(PYTEST) --part $(PART) -m object_stores --durations 10 tests/object_stores

.PHONY: test-yarn
test-yarn: setup  ## Run the tests that submit jobs to YARN; they need `make object-stores STORES="hdfs yarn"`.
	@bash tools/object_stores.sh check hdfs yarn
	$(call say,yarn: jobs submitted in client and in cluster mode)
	@$(PYTEST) -m object_stores --durations 10 tests/object_stores/test_yarn.py

.PHONY: crash
crash: setup  ## Run the long proofs: properties with 500 examples, then every kill and restart; PART=2/3: the second of three parts.
	$(call say,crash: part $(PART) of the property tests with the long profile and of the kills without Spark)
	@HYPOTHESIS_PROFILE=long $(PYTEST) $(BESIDE) --part $(PART) -m "(hypothesis or crash) and not spark and not services and not cluster and not object_stores and not browser" --timeout 1800
	$(call say,crash: part $(PART) of the tests that kill and restart Spark)
	@HYPOTHESIS_PROFILE=long $(PYTEST) $(BESIDE) --part $(PART) -m "crash and spark and not services and not cluster and not object_stores" --timeout 1800 --durations 10

.PHONY: fuzz
fuzz: setup  ## Run the property tests that need no Spark with 500 new random examples.
	$(call say,fuzz: the property tests with new examples)
	@HYPOTHESIS_PROFILE=fuzz $(PYTEST) $(BESIDE) -m "hypothesis and not crash and not spark and not services and not cluster and not object_stores and not browser" --timeout 1800

SEEDS ?= 100000

.PHONY: simulate
simulate: setup  ## Simulate Trident under seeded faults, on all cores; make simulate SEEDS=2000 is a short run.
	$(call say,simulate: $(SEEDS) seeds)
	@$(RUN) -m windowing simulate --seeds $(SEEDS) --processes "$$(nproc)"

ONLY ?=

.PHONY: bench
bench: setup  ## Measure; make bench ONLY=core,growth for some of the suites; the method is in benchmarks/README.md.
	$(call say,bench: $(or $(ONLY),all suites))
	@$(RUN) -m benchmarks $(ONLY)

.PHONY: bench-storm
bench-storm: setup  ## Measure Storm's own Java windows too: from Maven Central, where there is Maven and a JDK.
	$(call say,bench: storm)
	@$(RUN) -m benchmarks storm

.PHONY: bench-page
bench-page: setup  ## Write docs/benchmarks.md and its pictures from the results of `make bench`.
	@$(RUN) -m benchmarks --page

.PHONY: docs
docs: setup  ## Build the manual into site/, which opens from the folder and loads nothing from a network.
	$(call say,docs: site/index.html)
	@$(MKDOCS) build --quiet --strict

.PHONY: docs-serve
docs-serve: setup  ## Show the manual on http://127.0.0.1:8000, anew after each change.
	@$(MKDOCS) serve --strict --dev-addr 127.0.0.1:8000

.PHONY: lint
lint: setup  ## Check style and format with ruff.
	$(call say,lint: ruff check)
	@$(RUN) -m ruff check .
	$(call say,lint: ruff format --check)
	@$(RUN) -m ruff format --check .

.PHONY: types
types: setup  ## Check the types of windowing/, examples/ and of classes as users write them with mypy --strict.
	$(call say,types: mypy --strict windowing examples)
	@$(RUN) -m mypy --strict windowing examples tests/typed_user_code.py

.PHONY: doctests
doctests: setup  ## Run the examples in the docstrings of windowing/.
	$(call say,doctests: windowing/)
	@$(PYTEST) --doctest-modules -p tests.conftest windowing

.PHONY: clean
clean: services-stop cluster-stop object-stores-stop  ## Remove .venv and everything else that a command here has made.
	rm -rf .venv .venv-spark-* .delta build dist site demo-out spark-warehouse metastore_db derby.log .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
