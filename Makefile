# `make run` and `make test` need git, make and Python 3.11; they set up everything else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
, := ,
# The tests start the harness hundreds of times: let Python cache compiled modules, whatever the
# environment says.
export PYTHONDONTWRITEBYTECODE :=
# -v names each test as it ends, with its number and the total; the summary lists the slowest tests
# and what was skipped or failed.
DAEMONS := $(BIN)/pytest tests/integration -n auto -v --durations=15 --durations-min=10 -rsfE

.PHONY: run test test-all test-rest test-exhaustive test-source fuzz-check check image setup docs golden site release clean

run: setup  ## the federation scenario: set up, deploy, verify, report, remove
	$(BIN)/harness run scenarios/federation.yml

test:  ## lint, types, unit tests; then on real daemons: a single node, the federation, elastic nodes
	$(MAKE) --no-print-directory --jobs=2 check image
	$(DAEMONS) -m core

# What the first tests on daemons would wait for.
image: setup
	$(BIN)/harness images build $$($(BIN)/python -c 'from harness.releases import DEFAULT; print(DEFAULT)')

test-all: test test-rest test-exhaustive  ## test; then all scenarios, sabotages and releases

# What continuous integration adds to test. HARNESS_VAGRANT=1 first installs what virtual machines need.
test-rest: setup
	$(if $(HARNESS_VAGRANT),$(BIN)/harness doctor --provider vagrant --fix)
	$(BIN)/pytest tests/integration -v -m alone
	$(DAEMONS) -m "not core and not alone and not exhaustive"

# Tests that repeat what test and test-rest prove once: on another release, or with another sabotage
# of the same check.
test-exhaustive: setup
	$(DAEMONS) -m exhaustive

# A file, a URL, or a directory of Slurm's source (which has META), or else a directory of packages.
test-source: setup  ## tests of the Slurm in SOURCE (a tarball, or a directory of packages), on BASE=debian:bookworm
	HARNESS_SOURCE="$(if $(or $(wildcard $(SOURCE)/META),$(if $(wildcard $(SOURCE)/.),,$(SOURCE))),source,packages):$(SOURCE)$(if $(BASE),$(,)base:$(BASE))" \
		$(BIN)/pytest tests/integration/test_named_source.py tests/integration/test_reference.py -n auto -v

fuzz-check: setup  ## configurations, changed at random, about which check and the daemons disagree
	$(BIN)/python tests/reference/fuzz_check.py $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) \
		$(if $(RELEASE),--release $(RELEASE)) $(if $(CORPUS),--corpus $(CORPUS)) $(if $(GRID),--grid) $(if $(DAEMON),--daemon $(DAEMON))

check: setup  ## what needs no daemons: lint, types, import layers, unit tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/yamllint --strict .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline --strict roles
	$(BIN)/pytest -n auto

setup: $(VENV)/installed  ## the virtual environment; as root, also a Docker engine if none is running
	@$(BIN)/harness doctor --fix --quiet

$(VENV)/installed: constraints.txt pyproject.toml
	@echo "setup: installing the Python packages of constraints.txt into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or later is needed"; exit 1; }
	@$(PYTHON) -m venv $(VENV) > /dev/null 2>&1 || { \
		echo "setup: $(PYTHON) has no venv module: apt-get install python3-venv"; \
		[ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq --yes python3-venv && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/pip install -qq --disable-pip-version-check --require-hashes -r constraints.txt
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

docs: setup  ## docs/reference, generated from the scenario's models and the command line
	$(BIN)/python docs/reference/generate.py docs/reference

golden: setup  ## tests/golden, generated from the shipped scenarios; run it after changing a template or default
	$(BIN)/python tests/unit/golden.py

site: $(VENV)/site  ## the documentation as a web site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .github/site/mkdocs.yml

$(VENV)/site: .github/site/constraints.txt $(VENV)/installed
	@$(BIN)/pip install -qq --disable-pip-version-check --require-hashes -r .github/site/constraints.txt
	@touch $@

release: $(VENV)/installed  ## the wheel and the sdist in dist/, tested in a new environment; TAG=v0.1.0 to publish them
	$(BIN)/python .github/release.py $(TAG)

clean:  ## remove what runs and builds left in this directory
	$(BIN)/harness down --all
	rm -rf $(VENV) runs dist site
