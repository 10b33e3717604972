# segmentlog: `make help` lists the targets.

# Another interpreter: make PYTHON=/path/to/python3. Empty: the first on PATH that is new enough.
PYTHON ?=
# Handed on to pytest or to the benchmarks: make test ARGS="-k offset -x"
ARGS ?=

# Processes that share the tests: more than two cores can run, since one of them mostly waits for Spark.
# make WORKERS=0 runs them in one, which prints and debugs better.
WORKERS ?= 3
# Processes that each have a broker.
BROKERS ?= 2

VENV := $(CURDIR)/.venv
VENV_PYTHON := $(VENV)/bin/python
REQUIRE := sh conf/require.sh
# All that is needed is listed: pip need not resolve it again.
PIP_INSTALL := $(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps
# For each platform, and each Python that the package takes.
LOCK := $(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --no-annotate \
	--custom-compile-command "make lock" $(ARGS)
SCHEMA := $(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.
BUILD := $(VENV)/bin/hatchling build --directory dist
PYTEST := $(VENV_PYTHON) -m pytest
# In memory, where there is room: flushes to a disk take as long as all else that some tests do, and none of their files
# has to survive a power cut.
IN_MEMORY := $(shell free=$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}'); \
	[ "$${free:-0}" -ge 8388608 ] && [ -w /dev/shm ] && echo TMPDIR=/dev/shm)
# tests/conftest.py says which process begins with what. What passed leaves no files: they may be in memory.
IN_PARALLEL := --ignore=tests/interop --numprocesses=$(WORKERS) --dist=worksteal \
	--override-ini=tmp_path_retention_policy=failed

# Spark takes `python3` from PATH for its workers, which has none of our packages.
export PYSPARK_PYTHON := $(VENV_PYTHON)
export PYSPARK_DRIVER_PYTHON := $(VENV_PYTHON)
# Another Spark on this machine must not replace the one in .venv.
unexport SPARK_HOME
unexport PYTHONPATH
# Without compiled modules, each process compiles all of them again, and pytest rewrites every assertion again.
unexport PYTHONDONTWRITEBYTECODE
# Also on a machine whose host name does not resolve.
export SPARK_LOCAL_IP ?= 127.0.0.1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# What is required is checked first, also under `make -j`.
.NOTPARALLEL:
.PHONY: help demo test test-all versions check docs zip dist lock audit interop bench soak mutants require-java require-maven require-chromium

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: require-java $(VENV)/.installed-demo ## Read a log directory that Kafka wrote with Spark (examples/quickstart.py)
	@$(VENV_PYTHON) examples/quickstart.py

test: require-java $(VENV)/.installed-dev ## Run what is quick; print the part of the conformance matrix that ran
	@$(IN_MEMORY) $(PYTEST) $(IN_PARALLEL) $(ARGS)

test-all: require-java $(VENV)/.installed-dev ## Run all tests but interop and soak: crashes, kills, the whole matrix
	@$(IN_MEMORY) $(PYTEST) -m "not interop and not soak and not versions" $(IN_PARALLEL) $(ARGS)

versions: require-java $(VENV)/.installed-dev ## Test a wheel with each Spark, newer Pythons and Java, the oldest dependencies
	@$(IN_MEMORY) $(VENV_PYTHON) -m tests.versions $(ARGS)

check: docs $(VENV)/.installed-dev ## Lint, formatting, types, direction of imports, conf/Dockerfile, .github, docs/ as a site
	@$(VENV_PYTHON) -m ruff check .
	@$(VENV_PYTHON) -m ruff format --check .
	@$(VENV_PYTHON) -m mypy
	@$(VENV)/bin/lint-imports --no-logo
	@$(VENV)/bin/hadolint conf/Dockerfile
	@$(VENV)/bin/zizmor --offline --quiet .github
	@$(SCHEMA)citation-file-format CITATION.cff
	@$(SCHEMA)dependabot .github/dependabot.yml
	@$(SCHEMA)github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	@$(SCHEMA)github-workflows .github/workflows/*.yml

docs: $(VENV)/.installed-dev ## Build the pages of docs/ as a site in build/site
	@sh conf/build-site.sh $(VENV_PYTHON) build

zip: $(VENV)/.installed-demo ## Build dist/segmentlog.zip for --py-files, and the wheel (docs/deploy.md)
	@rm -rf dist
	@$(BUILD) --target wheel >/dev/null
	@cp dist/*.whl dist/segmentlog.zip
	@ls dist

dist: $(VENV)/.installed-dev ## Build and check what a release publishes: dist/*.whl and dist/*.tar.gz (RELEASING.md)
	@rm -rf dist
	@$(BUILD) >/dev/null
	@$(VENV)/bin/twine check --strict dist/*
	@$(PYTEST) -m "not versions" --quiet tests/test_distribution.py --distributions dist
	@ls dist

lock: $(VENV)/.installed-dev ## Pin what pyproject.toml asks for, with hashes; ARGS=--upgrade takes the newest
	@$(LOCK) --python-version 3.11 --extra dev --output-file conf/requirements-dev.txt pyproject.toml
	@$(LOCK) --python-version 3.11 --extra spark --constraint conf/requirements-dev.txt \
		--output-file conf/requirements-spark.txt pyproject.toml
	@echo hatchling | $(LOCK) --python-version 3.11 --constraint conf/requirements-dev.txt \
		--output-file conf/requirements-build.txt -

audit: $(VENV)/.installed-dev ## Look for known vulnerabilities in what is pinned (asks the package index)
	@$(VENV)/bin/uv tool run --quiet pip-audit --strict --disable-pip --require-hashes --requirement conf/requirements-dev.txt $(ARGS)

interop: require-java require-maven require-chromium $(VENV)/.installed-dev ## Compare with a real Kafka broker, live and killed (needs Maven)
	@$(IN_MEMORY) $(PYTEST) tests/interop -m "not soak" --numprocesses=$(BROKERS) --dist=loadfile \
		--override-ini=tmp_path_retention_policy=failed $(ARGS)

bench: require-java require-maven $(VENV)/.installed-dev ## Compare with peers and with Spark's Kafka source (needs Maven)
	@$(VENV_PYTHON) -m benchmarks $(ARGS)

soak: require-java require-maven $(VENV)/.installed-dev ## Run random campaigns, new examples and what make test-all leaves out, for about an hour
	@$(IN_MEMORY) $(PYTEST) -m "soak or hypothesis" --numprocesses=$(WORKERS) --dist=loadfile \
		--no-loadscope-reorder --override-ini=tmp_path_retention_policy=failed $(ARGS)

mutants: require-java $(VENV)/.installed-dev ## Plant faults one at a time, and see which of them the tests find
	@$(IN_MEMORY) $(VENV_PYTHON) -m tests.mutants reach $(ARGS)
	@$(IN_MEMORY) $(VENV_PYTHON) -m tests.mutants judge $(ARGS)

require-java:
	@$(REQUIRE) java

require-maven:
	@$(REQUIRE) maven

require-chromium:
	@$(REQUIRE) chromium

# A stamp is as old as the last install: pip runs again only when a dependency changed.
$(VENV)/.installed-demo: pyproject.toml conf/requirements-build.txt conf/requirements-spark.txt
	$(call install,spark)
	@touch $@

# dev contains spark, so that the demo need not install again.
$(VENV)/.installed-dev: pyproject.toml conf/requirements-build.txt conf/requirements-dev.txt
	$(call install,dev)
	@touch $@ $(VENV)/.installed-demo

# Every file that is downloaded has a hash in conf/. An editable package has none, so it comes second, and brings nothing.
# A .venv of a removed or too old Python is made anew.
define install
	@python=$$($(REQUIRE) python "$(PYTHON)") || exit 1; \
	$(REQUIRE) python $(VENV_PYTHON) >/dev/null 2>&1 || \
		{ echo "Making .venv with $$python"; "$$python" -m venv --clear $(VENV); }
	@echo "Installing .[$(1)] into .venv"
	@$(PIP_INSTALL) --require-hashes --requirement conf/requirements-build.txt --requirement conf/requirements-$(1).txt
	@$(PIP_INSTALL) --no-build-isolation --editable .
endef
