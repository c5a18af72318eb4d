# Two commands on a fresh machine: `make run` and `make test`. Each sets up .venv first.
PYTHON ?= python3
# Any torch >= 2.6 will do; a CPU build is enough. Named exactly, so that pip takes this one and not a newer CUDA build.
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test lint setup clean
run: setup
	$(BIN)/kernelbraid run

# What starts no team of spinning threads runs side by side; what the judge runs or times needs the CPUs for itself.
PARALLEL := tests/cpu_stages tests/memory tests/problems
test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PARALLEL)
	$(BIN)/python -m pytest $(addprefix --ignore=,$(PARALLEL))

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/.done
$(VENV)/.done: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

clean:
	rm -rf $(VENV) build dist
