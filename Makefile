# `make run` and `make test` need git, make and Python 3.11; they set up whatever else is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The tests start the harness hundreds of times: Python shall keep what it compiled, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test check setup docs clean

run: setup  ## the federation scenario: set up, deploy, verify, report, remove
	$(BIN)/harness run scenarios/federation.yml

test: check  ## all checks and tests, on genuine daemons too; with HARNESS_VAGRANT=1 on virtual machines in any case
	$(if $(HARNESS_VAGRANT),$(BIN)/harness doctor --provider vagrant --mend)
	$(BIN)/pytest tests/integration -m alone
	$(BIN)/pytest tests/integration -m "not alone" -n auto --durations=15 --durations-min=10 -rs

check: setup  ## what needs no daemon: lint, types, import layers, unit tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/yamllint --strict .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline --strict roles
	$(BIN)/pytest -n auto

setup: $(VENV)/installed  ## the virtual environment, and a Docker engine where none answers and we are root
	@$(BIN)/harness doctor --mend --quiet

$(VENV)/installed: constraints.txt pyproject.toml
	@echo "setup: installing the Python packages of constraints.txt into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: Python 3.11 or later is needed"; exit 1; }
	@$(PYTHON) -m venv $(VENV) > /dev/null 2>&1 || { \
		echo "setup: $(PYTHON) has no venv module: apt-get install python3-venv"; \
		[ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -qq --yes python3-venv && $(PYTHON) -m venv $(VENV); }
	@$(BIN)/pip install -qq --disable-pip-version-check --require-hashes -r constraints.txt
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

docs: setup  ## docs/reference, out of the scenario's models and the command line
	$(BIN)/python docs/reference/generate.py docs/reference

clean:  ## remove what a run or a build left in this folder
	$(BIN)/harness down --all
	rm -rf $(VENV) runs dist
