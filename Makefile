# Two commands do all set-up on a fresh machine: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
BIN := .venv/bin
# One thread a process: two threads beside another busy process make small operations hundreds of times slower.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test docs fuzz soak mutants oldest wheel audit lint types format speed clean

demo: .venv/ready
	$(BIN)/tradi demo

# What is held of the source, in per cent, by all tests together.
LINES := 98
BRANCHES := 97
test: lint types
	$(BIN)/pytest -n 2 --cov --cov-report=json:.coverage.json --cov-report=term:skip-covered
	$(BIN)/python .ci/covered.py .coverage.json $(LINES) $(BRANCHES)

# Some hours of what `make test` does for a minute: FUZZ files of every kind, at random.
FUZZ ?= 100000
fuzz: .venv/ready
	TRADI_FUZZ=$(FUZZ) $(BIN)/pytest -n 2 tests/test_fuzz.py tests/test_fuzz_readers.py tests/test_fuzz_checkpoints.py

docs: .venv/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# A quarter of an hour of what `make test` does in short form: killed runs, long ones, many members.
KILLS ?= 1000
soak: .venv/ready
	folder=$$(mktemp -d) && $(BIN)/python -m tests.soak kills $$folder --kills $(KILLS); rm -rf $$folder
	$(BIN)/python -m tests.soak load --steps 100000
	$(BIN)/python -m tests.soak members --members 1000

# Changes to the code that the tests should notice, MUTANTS from each of four rooms, for MINUTES at the most; another
# call goes on where this one has ended. docs/quality.md says what became of them.
MUTANTS ?= 50
MINUTES ?= 60
mutants: .venv/ready
	$(BIN)/python benchmarks/mutants.py --number $(MUTANTS) --minutes $(MINUTES)

# The oldest versions that pyproject.toml allows, as far as they can be had without CUDA, and the wheel in a clean venv.
oldest:
	.ci/oldest

wheel: .venv/ready
	.ci/wheel $(BIN)/python

# Known vulnerabilities of what is installed; without a network it says so and passes.
audit: .venv/ready
	.ci/audit $(BIN)/python

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Two hours, on an idle machine.
speed: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[speed]'
	$(BIN)/python benchmarks/speed.py --out results/speed/speed.json > /dev/null
	$(BIN)/python benchmarks/serving.py --out results/speed/serving.json
	$(BIN)/python benchmarks/price.py --out results/speed/price.json
	$(BIN)/python benchmarks/frozen.py --out results/speed/frozen.json
	$(BIN)/python benchmarks/draw.py results/speed/speed.json results/speed/speed.md docs/pictures/speed.png
	mv results/speed/speed.png docs/pictures/speed.png

.venv/ready: pyproject.toml constraints.txt tests/oracles.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/pip install --quiet -c constraints.txt -e . --group dev
	$(BIN)/pip install --quiet --no-deps -r tests/oracles.txt
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache build dist
