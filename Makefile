PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OLD ?= 39f35ce
# One more than cores, because many tests wait; tests/order.py has the order.
WORKERS := -n $$(($$(nproc 2>/dev/null || echo 2) + 1)) --dist loadfile --no-loadscope-reorder

.PHONY: train test test-all chaos photographs cost check clean

train: $(VENV)/.runtime  ## the main job: CartPole through Redis, then a summary
	$(BIN)/dppo-redis train CartPole-v1 --actors 2 --target-return 475

test: $(VENV)/.development  ## the full test suite
	$(BIN)/python -m pytest $(WORKERS)

test-all: $(VENV)/.development  ## the same with what needs mounts, other users or minutes; skips say what is missing
	$(BIN)/python -m pytest $(WORKERS) -m ""

chaos: $(VENV)/.development  ## attack a CartPole fleet: make chaos SECONDS=1800 SEED=1
	$(BIN)/python -m tests.chaos --seconds $(or $(SECONDS),1800) --seed $(or $(SEED),1)

photographs: $(VENV)/.development  ## an old commit and this checkout: the same to the bit? make photographs OLD=COMMIT
	$(BIN)/python -m tests.photographs --old $(OLD)

cost: $(VENV)/.development  ## CPU time of both, in pairs: make cost OLD=COMMIT
	$(BIN)/python -m tests.photographs --old $(OLD) --cost

check: $(VENV)/.development  ## style, types, direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.development: requirements-dev.txt $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@
