# Every target sets up .venv by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
NATIVE := $(wildcard csrc/*)

.PHONY: all demo test test-fast lint bench clean

all: $(VENV)/installed

$(VENV)/dependencies: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH) numpy "setuptools>=77" ninja "pybind11>=2.13"
	touch $@

$(VENV)/installed: $(VENV)/dependencies setup.py $(NATIVE)
	$(BIN)/pip install --quiet --no-build-isolation --editable ".[demo,fl,test]"
	touch $@

demo: $(VENV)/installed
	$(BIN)/python -m specgrad_fl.demo

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest --cov=specgrad_kernels --cov-fail-under=90

test-fast: $(VENV)/installed
	$(BIN)/pytest -m "not slow" -x -q

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks.run

clean:
	rm -rf $(VENV) build dist *.egg-info specgrad_kernels/*.so
