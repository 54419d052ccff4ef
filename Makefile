# Two commands do all set-up on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
BIN := .venv/bin
# One thread a process: two threads beside another busy process make small operations hundreds of times slower.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types format speed clean

demo: .venv/ready
	$(BIN)/tradi demo

test: lint types
	$(BIN)/pytest -n 2

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Half an hour, on an idle machine.
speed: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[speed]'
	$(BIN)/python benchmarks/speed.py --out results/speed/speed.json > /dev/null
	$(BIN)/python benchmarks/after_training.py --out results/speed/after_training.json
	$(BIN)/python benchmarks/draw.py results/speed/speed.json results/speed

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist
