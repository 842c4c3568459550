# Every target sets itself up: it makes .venv once, and again when pyproject.toml or constraints.txt changed.
#
#   make demo                       the whole system on this machine, until CartPole-v1 is solved
#   make demo ARGS="--seed 3"       the same, with options of `shoal demo`
#   make test                       all tests
#   make test-device                flash emulated devices and let them act: needs root and Debian
#   make faults                     seed faults into a copy: each must fail its test
#   make check                      format, lint, types, import contracts, stubs
#   make bench ARGS="learn"         the measurements of the README
#   make protos                     write the stubs of protos/shoal/v1 again

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
.PHONY: help demo test test-device faults check bench protos format clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
WORKERS ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PYTHONUNBUFFERED := 1

comma := ,
RUN_EXTRAS := learner$(comma)broker$(comma)ops
DEV_EXTRAS := $(RUN_EXTRAS)$(comma)dev
RUN_STAMP := $(VENV)/.installed-run
DEV_STAMP := $(VENV)/.installed-dev

PROTOS := $(wildcard protos/shoal/v1/*.proto)
SERVICES := $(shell grep -l '^service ' $(PROTOS) /dev/null)
# $(1): the directory that stubs go to
generate = $(BIN)/python -m grpc_tools.protoc -Iprotos --python_out=$(1) --pyi_out=$(1) $(PROTOS) \
	&& $(BIN)/python -m grpc_tools.protoc -Iprotos --grpc_python_out=$(1) $(SERVICES)

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python:
	@echo "==> making $(VENV) with $$($(PYTHON) --version 2>&1)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Shoal needs Python 3.11 or newer, and '$(PYTHON)' is older or missing: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
		echo "$(PYTHON) cannot make a virtual environment: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }

# $(1): the extras to install
define install
	@echo "==> installing shoal[$(1)] into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install -qq --constraint constraints.txt --editable '.[$(1)]'
	@echo "==> installed"
endef

$(RUN_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,$(RUN_EXTRAS))
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(call install,$(DEV_EXTRAS))
	@touch $@ $(RUN_STAMP)

demo: $(RUN_STAMP)
	@echo "==> shoal demo $(ARGS)"
	@exec $(BIN)/shoal demo $(ARGS)

test: $(DEV_STAMP)
	@if ! command -v mosquitto >/dev/null && ! [ -x /usr/sbin/mosquitto ]; then \
		echo "!!! mosquitto is not installed: the tests on Mosquitto are SKIPPED (apt-get install mosquitto)" >&2; fi
	@if ! command -v mcopy >/dev/null || ! { command -v mkfs.vfat || [ -x /usr/sbin/mkfs.vfat ]; } >/dev/null; then \
		echo "!!! mtools or dosfstools is not installed: the tests of flashing are SKIPPED (apt-get install mtools dosfstools)" >&2; fi
	@if ! command -v sshd >/dev/null && ! [ -x /usr/sbin/sshd ]; then \
		echo "!!! sshd is not installed: the tests of flashing over SSH are SKIPPED (apt-get install openssh-server)" >&2; fi
	@echo "==> pytest -n $(WORKERS) --dist loadfile $(ARGS)"
	@OMP_NUM_THREADS=1 exec $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

# What it builds is kept in ~/.cache/shoal/device, or where SHOAL_DEVICE_CACHE says.
test-device: $(DEV_STAMP)
	@echo "==> pytest -v -m device -n 2 --dist loadfile tests/device $(ARGS)"
	@OMP_NUM_THREADS=1 exec $(BIN)/python -m pytest -v -m device -n 2 --dist loadfile tests/device $(ARGS)

faults: $(DEV_STAMP)
	@echo "==> pytest -m faults -n $(WORKERS) tests/faults $(ARGS)"
	@OMP_NUM_THREADS=1 exec $(BIN)/python -m pytest -m faults -n $(WORKERS) tests/faults $(ARGS)

check: $(DEV_STAMP)
	@echo "==> format"
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: make format" >&2; $(BIN)/ruff format --check . ; }
	@echo "==> lint"
	@$(BIN)/ruff check .
	@echo "==> types"
	@$(BIN)/mypy
	@echo "==> import contracts"
	@$(BIN)/lint-imports --no-logo
	@echo "==> stubs against protos"
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(call generate,"$$out"); \
	diff -r -x '*.proto' -x '__init__.py' -x '__pycache__' -x py.typed "$$out/shoal/v1" protos/shoal/v1 \
		|| { echo "the committed stubs differ from the .proto files: make protos" >&2; exit 1; }
	@echo "==> all checks passed"

format: $(DEV_STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(DEV_STAMP)
	@echo "==> shoal bench $(or $(ARGS),learn, then shoal bench actor)"
	@$(if $(ARGS),$(BIN)/shoal bench $(ARGS),$(BIN)/shoal bench learn && $(BIN)/shoal bench actor)

protos: $(DEV_STAMP)
	@echo "==> writing stubs of $(words $(PROTOS)) .proto files"
	@rm -f protos/shoal/v1/*_pb2.py protos/shoal/v1/*_pb2.pyi protos/shoal/v1/*_pb2_grpc.py
	@$(call generate,protos)

clean:
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path '*/.venvs/*' -prune -exec rm -rf {} +
