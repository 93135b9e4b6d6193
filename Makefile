PYTHON ?= python3
BIN := .venv/bin

.PHONY: bench test lint
bench: .venv/installed  ## install, run the default sweep, show the result
	$(BIN)/moebench sweep

test: .venv/installed-test  ## install with the test extra, run the whole suite
	$(BIN)/python -m ruff check
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest

.venv/bin/python:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "moebench needs Python 3.11 or newer, this is " + sys.version'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e .
	touch $@

.venv/installed-test: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[test]'
	touch $@ .venv/installed

.PHONY: figures
figures: .venv/installed  ## error rates and power of every statistic, and the instrument's own error on this machine
	$(BIN)/python tests/perf/statistics_power.py
	$(BIN)/python tests/perf/instrument.py

.PHONY: test-native
test-native: .venv-native/installed  ## the dist_moe adapter and planner against the real wheel, without a GPU
	.venv-native/bin/python -m pytest tests/native

.venv-native/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-native && echo '*' > .venv-native/.gitignore
	.venv-native/bin/python -m pip install --disable-pip-version-check -q -c constraints.txt -e . pytest
	.venv-native/bin/python -m pip install --disable-pip-version-check -q --no-deps triton==3.8.0 dist-moe==0.1.0
	touch $@
