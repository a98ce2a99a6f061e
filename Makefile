# `make test` needs Python 3.11 or later, git and make; the rest it fetches into .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
PYTEST ?= $(BIN)/pytest -n auto

# Debian packages that tests marked `system` need.
SYSTEM_PACKAGES := chromium

.PHONY: test test-all check race fuzz gpu docs system-packages

test: check
	$(PYTEST) -m "not system"

test-all: check system-packages
	$(PYTEST)

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Optimizers on real data, under equal tuning; `make race ARGS="--help"` says what else can be raced.
race: $(READY)
	$(BIN)/agdopt race $(ARGS)

# Only the property tests, with many more examples.
fuzz: $(READY)
	$(PYTEST) -m hypothesis --hypothesis-profile=fuzz

# Runs under the machine's own Python, because a machine with a GPU brings its own build of PyTorch.
gpu:
	PYTHONPATH=src $(PYTHON) -m agdopt.race.gpu

docs: $(READY)
	$(BIN)/python -m agdopt.race.docs

system-packages:
ifneq ($(strip $(SYSTEM_PACKAGES)),)
	apt-get update
	apt-get install --yes --no-install-recommends $(SYSTEM_PACKAGES)
endif

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
