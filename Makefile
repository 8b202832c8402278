# Each target sets up what it needs. Needs make and Python 3.11 or newer. What uses the plug-in's
# jar (setup, tests, demo-cluster, bench, packages) also needs Java 17 and Maven; test-all and
# test-storage also need Go. PYTHON=python3.12 takes that one, instead of the newest that is
# installed.

PYTHON ?= $(or $(shell for each in 3.14 3.13 3.12 3.11; do \
	if python$$each -c '' 2>/dev/null; then echo python$$each; break; fi; done),python3)
VERSION = $(shell sed -n 's/^VERSION = "\(.*\)"$$/\1/p' imap_wal/version.py)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV := $(BIN)/python -m uv pip install --quiet --python $(BIN)/python
install = $(UV) --offline $(1) 2> /dev/null || \
	{ echo 'Installing into $(VENV): $(strip $(2)).'; $(UV) $(1); }
VERSIONS := build/versions.txt
MVN := mvn -q -B -f hazelcast_plugin
JAR := hazelcast_plugin/target/imap-wal-hazelcast.jar
JARS := $(JAR) hazelcast_plugin/target/imap-wal-seatunnel.jar
JAVA_MODULES := $(addprefix hazelcast_plugin/,wire plugin seatunnel)
POMS := hazelcast_plugin/pom.xml $(JAVA_MODULES:=/pom.xml)
JAVA_SOURCES := LICENSE NOTICE $(POMS) $(shell find $(JAVA_MODULES:=/src/main) -type f 2>/dev/null)
PACKAGING := pyproject.toml hatch_build.py imap_wal/version.py requirements/constraints.txt
SBOM_TOOL := cyclonedx-bom==7.5.0
SBOM_PLUGIN := 2.9.3
PYTEST := $(BIN)/python -m pytest
LOWEST := build/lowest/bin/python
LOWEST_EXTRAS := $(addprefix --extra ,agent spark s3 oss hdfs duckdb demo test)
LOWEST_MARKS := not cluster and not storage and not torture
LOWEST_TESTS := $(addprefix tests/,unit log restore archive rewrite storage cli spark monitoring)

# Three at a time on two processors: tests with members mostly wait. Four take 4 % longer.
WORKERS ?= $(shell nproc 2>/dev/null | awk '{print int($$1 * 3 / 2)}')
SPREAD := --numprocesses $(WORKERS) --dist loadscope
# On a disk, a tenth of the time of the quick tests is that of syncs, and none of them needs it.
# Only where there is enough memory: they need about 1 GB of it.
IN_MEMORY = $(shell ( [ "$$(awk '/^MemAvailable/ {print $$2}' /proc/meminfo)" -ge 12000000 ] && \
	[ "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -ge 4000000 ] && \
	! grep -q ' /dev/shm .*noexec' /proc/mounts && echo TMPDIR=/dev/shm ) 2> /dev/null)
QUICK = $(IN_MEMORY) $(PYTEST) $(SPREAD) -m 'not thorough and not torture and not storage' --hypothesis-profile ci

# Our own code is installed in place. Without bytecode, each process compiles it again, for 2 s.
unexport PYTHONDONTWRITEBYTECODE

# mypy compares contents, so what it found in one clone helps in the next.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/imap-wal/mypy

.DEFAULT_GOAL := help
.PHONY: help setup python jar demo demo-cluster test test-all collected test-python test-java
.PHONY: test-hazelcast test-storage test-lowest torture nemesis soak
.PHONY: bench bench-quick docs lint format constraints sbom reproducible wheel release version clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: python jar ## .venv with everything, and the plug-in's jar
python: $(VENV)/.everything ## all of imap-wal in .venv, without the jar
jar: $(JAR) ## the jars of the plug-in and for SeaTunnel, after a change in Java

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'Python 3.11 or newer is needed: install it, or name it with make PYTHON=...' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# uv fetches and installs in a third of pip's time. First it uses its cache alone: otherwise it
# fetches and builds pyspark again, for 40 s, if the package index does not say whether the file has
# changed. The stamps are empty files whose time says when it last ran. Hashes are checked only if
# every requirement has one. Our own folder has none: it is installed after the others.
$(VENV)/.uv: requirements/uv.txt | $(BIN)/python
	$(PIP) --require-hashes --requirement $<
	@touch $@

$(VENV)/.everything: $(PACKAGING) $(VENV)/.uv
	@$(call install,--require-hashes --requirement requirements/constraints.txt, \
		some 150 libraries; about a minute or two)
	$(UV) --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.demo $(VENV)/.docs $@

$(VENV)/.demo: $(PACKAGING) $(VERSIONS) $(VENV)/.uv
	@$(call install,--constraint $(VERSIONS) --editable '.[demo]',what the demo needs; less than a minute)
	@touch $@

$(VENV)/.docs: $(PACKAGING) $(VERSIONS) $(VENV)/.uv
	@$(call install,--constraint $(VERSIONS) --editable '.[docs]',what builds the site; less than a minute)
	@touch $@

$(VERSIONS): requirements/constraints.txt
	@mkdir -p $(@D)
	grep -oE '^[^# ]+==[^ ]+' $< > $@

$(JAR): $(JAVA_SOURCES)
	$(MVN) package -DskipTests
	@touch $@

demo: $(VENV)/.demo ## real flights, kill -9, restore, archive, rewrite; a report and out/demo.png (Python only)
	$(BIN)/python -m examples.demo --picture out/demo.png

demo-cluster: setup ## the same flights into two real Hazelcast members, all killed, restarted, compared
	$(BIN)/python -m examples.demo --members 2 --picture out/demo-cluster.png

# The workers of pytest-xdist would all rewrite the assertions of all tests, if no process had done
# it. The Java tests mostly wait for their members, so they run beside everything else.
ifeq ($(FOR),)
test: ## quick: lint, both languages, members, Spark, servers, a browser; FOR=imap_wal/write: tests of that package
	@$(MAKE) --no-print-directory --jobs 3 lint test-java test-python

# It does not make the jar again, which members of the Python tests may have open.
test-java: jar
	$(MVN) test -Dtests.excluded=thorough

collected: python
	@$(PYTEST) --collect-only --quiet > /dev/null

test-python: setup collected
	$(QUICK)
else
test: setup
	$(if $(filter hazelcast_plugin%,$(FOR)),$(MVN) verify -Dtests.excluded=thorough,$(QUICK) --for=$(FOR) tests)
endif

test-all: setup ## everything, before a release, in parts: what passed on this tree is not run again
	$(BIN)/python -m tests.everything $(WORKERS)

test-hazelcast: setup ## Hazelcast's own tests of maps, with the plug-in as map store of each map: STORE=simple or none compares
	$(BIN)/python -m tests.hazelcast_maps --store $(or $(STORE),wal) $(CLASSES)

test-storage: setup ## conformance of every storage backend
	$(PYTEST) --hypothesis-profile all -m storage

test-lowest: jar ## the oldest versions of libraries that pyproject.toml allows, and the tests that depend on them
	python3.11 -m venv --clear build/lowest
	$(LOWEST) -m pip install --quiet --require-hashes --requirement requirements/lowest.txt
	$(LOWEST) -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(LOWEST) -m pytest -m '$(LOWEST_MARKS)' -k 'not encrypt and not moto' $(LOWEST_TESTS)
	$(LOWEST) -m pip install --quiet --require-hashes --requirement requirements/lowest-encryption.txt
	$(LOWEST) -m pytest -m '$(LOWEST_MARKS)' -k encrypt $(LOWEST_TESTS)

torture: setup ## long runs with kills and faults
	$(PYTEST) --hypothesis-profile torture -m torture --timeout 3600

WORLD = --disks $(or $(DISKS),shared) --copies $(or $(COPIES),1)

nemesis: setup ## faults of every kind under load on three real members and agents: MINUTES=10 SEED=1, DISKS=own COPIES=2
	$(BIN)/python -m tests.nemesis --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) $(WORLD)

soak: setup ## hours of load with faults, rewrites and prunes; memory, files, threads, disk and latency must stay flat: HOURS=8 SEED=1, DISKS=own COPIES=2
	$(BIN)/python -m tests.soak --hours $(or $(HOURS),8) --seed $(or $(SEED),1) $(WORLD)

bench: setup ## all numbers, as ratios in one run; JSON and charts in out/bench/
	$(BIN)/python -m benchmarks --save out/bench

bench-quick: setup ## the same, shorter
	$(BIN)/python -m benchmarks --quick --save out/bench

# With --quiet, --strict counts no warning.
docs: $(VENV)/.docs ## the documentation as a site in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: python ## ruff, mypy --strict, import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: python ## write what ruff would
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# For the oldest Python that is supported: newer ones need a part of that.
COMPILE := build/fresh/bin/uv pip compile --quiet --no-header --no-annotate --generate-hashes --python-version 3.11 pyproject.toml
OLDEST := $(COMPILE) --resolution lowest-direct

constraints: ## newest and oldest versions of everything that the extras need, and their hashes
	$(PYTHON) -m venv build/fresh
	build/fresh/bin/python -m pip install --quiet --upgrade uv
	(echo '# Versions and hashes of everything that the tests run with; regenerate with `make constraints`.'; $(COMPILE) --extra dev) > build/constraints.txt
	(echo '# The oldest versions that pyproject.toml allows, for `make test-lowest`; regenerate with `make constraints`.'; $(OLDEST) $(LOWEST_EXTRAS)) > build/lowest.txt
	(echo '# The same for encryption at rest, which needs a newer pyarrow.'; $(OLDEST) --extra encryption --extra test) > build/lowest-encryption.txt
	(echo '# What installs the rest. Regenerate with `make constraints`.'; echo uv | $(filter-out pyproject.toml,$(COMPILE)) -) > build/uv.txt
	mv build/constraints.txt build/lowest.txt build/lowest-encryption.txt build/uv.txt requirements/

sbom: $(JAR) $(VERSIONS) ## what both sides are made of, as CycloneDX, in out/sbom/
	rm -rf build/sbom && mkdir -p out/sbom
	$(PYTHON) -m venv build/sbom/runtime
	build/sbom/runtime/bin/python -m pip install --quiet --constraint $(VERSIONS) '.[agent,spark,s3,duckdb,encryption,uvloop]'
	build/sbom/runtime/bin/python -m pip uninstall --quiet --yes pip setuptools
	$(PYTHON) -m venv build/sbom/tool
	build/sbom/tool/bin/python -m pip install --quiet $(SBOM_TOOL)
	build/sbom/tool/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON -o out/sbom/python.cdx.json build/sbom/runtime/bin/python
	$(MVN) package -DskipTests org.cyclonedx:cyclonedx-maven-plugin:$(SBOM_PLUGIN):makeAggregateBom -DoutputReactorProjects=false -DoutputFormat=json -DoutputName=java.cdx -DoutputDirectory=$(CURDIR)/out/sbom -DincludeTestScope=false

reproducible: jar ## builds the jars again in another folder: the bytes must be the same
	rm -rf build/again && mkdir -p build/again && cp -r --parents LICENSE NOTICE $(POMS) $(JAVA_MODULES:=/src) build/again
	mvn -q -B -f build/again/hazelcast_plugin package -DskipTests -Dmdep.skip
	for jar in $(JARS); do cmp $$jar build/again/$$jar || exit 1; done

wheel: setup ## a wheel with the jars in it, in dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

release: setup ## sdist and wheel in dist/, checked as a package index does
	rm -rf dist && $(BIN)/python -m hatchling build
	$(PYTHON) -m venv build/twine
	build/twine/bin/python -m pip install --quiet twine
	build/twine/bin/twine check --strict dist/*

version: ## write a new version into the files that have it: make version NEW=0.2.0
	@test -n "$(NEW)" || { echo 'this is $(VERSION); for another one: make version NEW=0.2.0' >&2; exit 1; }
	sed -i 's/^VERSION = ".*"$$/VERSION = "$(NEW)"/' imap_wal/version.py
	sed -i '0,/<version>.*<\/version>/s//<version>$(NEW)<\/version>/' $(POMS)
	sed -i 's/^\(version\|appVersion\): .*/\1: "$(NEW)"/' charts/imap-wal/Chart.yaml
	sed -i 's/$(VERSION)/$(NEW)/g' charts/imap-wal/README.md deploy/*.Containerfile examples/compose/compose.yaml docs/how-to/kubernetes.md

clean: ## remove what was built; .venv stays
	rm -rf build dist site out hazelcast_plugin/target hazelcast_plugin/*/target .mypy_cache .ruff_cache .pytest_cache .hypothesis
