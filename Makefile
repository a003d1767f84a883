# Everything runs in a local virtual environment, which the first target creates.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORKERS ?= 2
LOCK ?=  # requirements.lock: install exactly these files, checked by SHA-256, as CI does
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help run test test-all test-extras check format mutants bench reproduce-quick docs release-check audit clean

help:
	@echo "make run      set up, learn split-digits, write a report"
	@echo "make test     set up, run the fast tests; make test-all runs all tests"
	@echo "make test-extras   the tests of Avalanche, ONNX, pandas and River, which are installed for them"
	@echo "make check    check linting, formatting and types"
	@echo "make docs     build the documentation; warnings are errors"
	@echo "make mutants  break the formulas one at a time; the tests must fail"
	@echo "make bench    measure the speed, write runs/bench.json; BENCH=\"--quick\" or other options of frcl bench"
	@echo "make reproduce-quick   every table and figure of the paper at a tiny size, in runs/quick: checks that everything runs"
	@echo "make release-check   build sdist and wheel, install and try them; RELEASE=--fresh with all dependencies"
	@echo "make audit    look for known vulnerabilities of the dependencies, with pip-audit; needs the network"
	@echo "make clean    remove all generated files"

$(READY): pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
ifeq ($(strip $(LOCK)),)
	$(PIP) -c constraints.txt -e ".[test,dev,docs]"
else
	$(PIP) --require-hashes --no-deps -r $(LOCK)
	$(PIP) -c constraints.txt torch
	$(PIP) --no-build-isolation --no-deps -e .
	$(BIN)/python -m pip check
endif
	@touch $(READY)

run: $(READY)
	$(BIN)/frcl run --out runs/split-digits --overwrite

test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

test-all: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# What optional extras need, on top of the environment of the other tests.
EXTRAS := $(VENV)/extras
test-extras: $(READY)
	$(PYTHON) -m venv $(EXTRAS)
	$(BIN)/python -c 'import site; print(site.getsitepackages()[0])' > "$$($(EXTRAS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/tests.pth"
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt avalanche-lib onnx onnxscript onnxruntime pandas river
	PYTHONPATH=$(CURDIR)/src $(EXTRAS)/bin/python -m pytest tests/test_avalanche.py tests/test_deploy.py tests/test_sklearn.py tests/test_tracking.py tests/test_examples.py -k "avalanche or onnx or pandas or river"

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutants: $(READY)
	$(BIN)/python tools/mutants.py

bench: $(READY)
	@mkdir -p runs
	$(BIN)/frcl bench --out runs/bench.json $(BENCH)

reproduce-quick: $(READY)
	$(BIN)/python -m paper all --quick --again

docs: $(READY)
	$(BIN)/sphinx-build -W -q -b html docs site
	@echo "documentation: site/index.html"

release-check: $(READY)
	$(BIN)/python tools/release.py $(RELEASE)

audit: $(READY)
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --disable-pip --require-hashes -r requirements.lock

clean:
	rm -rf $(VENV) runs site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
