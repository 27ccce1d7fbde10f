# Two commands do everything: `make demo` and `make test`. `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Most of what is installed is never imported: the rest is compiled when it is.
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install -q --no-compile -c constraints.txt

# The newest IPython is in .venv; these are the oldest we support, and the last release
# of the line in between: what works on both ends hardly ever fails there alone, so
# that `make test` leaves it to `make between`, which continuous integration runs.
OLDEST_IPYTHON  := 7.34.0
IPYTHON_BETWEEN := 8.37.0

# What depends on IPython: all that runs in a shell, but not what only reads words.
SHELL_TESTS := tests/notebook --ignore=tests/notebook/test_arguments.py \
    --ignore=tests/notebook/test_demo.py \
    tests/gpu_select/test_watch.py tests/gpu_select/test_magic.py \
    tests/gpu_mem/test_free_in_shells.py tests/gpu_mem/test_names_held.py

# The oldest torch that the README names, the one of constraints.txt and the newest; on
# Linux the CUDA packages that come with one of them are some gigabytes.
TORCHES := 2.4.0 2.13.0 2.14.1

# The newest torch of these in its CUDA build, some 5 GB, and the header that its wheels
# of CUDA leave out: what tests/fakes/cuda is built against.
CUDA_TORCH  := 2.14.1
CUDA_HEADER := nvidia-cuda-crt==13.0.88
SCENARIO    ?= idle_four_gpus

# A file more at once than there are processors, since some wait for kernels and
# clusters; more than eight only eat memory.
WORKERS  ?= $(shell $(PYTHON) -c "import os; print(min(8, os.cpu_count() + 1))")
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Hundreds of processes import the same: none is to compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check quick mutants unit between ipython torches cuda cuda-shell hardware bench strangers gallery golden notebooks browser map words docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## run the tour in a real kernel on whatever device is here
	@mkdir -p build && $(BIN)/python -m gpumagic demo --out build/tour.html

# The oldest IPython beside all else, one test at a time: by itself it would begin and
# end with processors that have nothing to do.
test: check .venv-ipython-$(OLDEST_IPYTHON)/.ready  ## set up for development, then run every check
	@mkdir -p build
	@$(MAKE) ipython-$(OLDEST_IPYTHON) PARALLEL= >build/ipython.log 2>&1 & \
	older=$$!; trap "kill $$older" INT TERM; failed=0; $(MAKE) unit || failed=1; \
	wait $$older || failed=1; cat build/ipython.log; exit $$failed

check: $(VENV)/.dev  ## format, lint, types, imports, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

quick: $(VENV)/.dev  ## a minute or two: format, types, quick tests of what differs from main, or ROOM=gpu_mem
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/mypy
	$(BIN)/python -m tests.quick $(ROOM)

mutants: $(VENV)/.dev  ## break rooms at random and count what tests notice, in rooms changed or ROOM="gpu_mem devices"
	$(BIN)/python -m tests.mutants $(ROOM) --out build/mutants.json

unit: $(VENV)/.dev  ## all tests that need neither a GPU nor a browser
	$(BIN)/python -m pytest $(PARALLEL)

between: ipython-$(IPYTHON_BETWEEN)  ## the shell tests on the IPython that `make test` leaves out

ipython: ipython-$(OLDEST_IPYTHON) between  ## the shell tests again on all older IPythons

ipython-%: .venv-ipython-%/.ready
	.venv-ipython-$*/bin/python -m pytest -q $(PARALLEL) $(SHELL_TESTS)

torches: $(TORCHES:%=torch-%)  ## what depends on torch, on the oldest and newest torch; some gigabytes

torch-%: .venv-torch-%/.ready
	.venv-torch-$*/bin/python -m tests.torches $(PARALLEL)

cuda: .venv-cuda/.ready  ## torch's own CUDA without a GPU: tests/hardware and what it runs on; Linux on x86-64, 5 GB
	.venv-cuda/bin/python -m tests.fakes.cuda -m pytest $(PARALLEL) tests/hardware tests/fakes/cuda

cuda-shell: .venv-cuda/.ready  ## IPython there, with four GPUs or SCENARIO=idle_gpu
	@.venv-cuda/bin/python -m tests.fakes.cuda --scenario $(SCENARIO) -m IPython --ext=gpumagic

hardware: $(VENV)/.dev  ## the tests that need a GPU
	$(BIN)/python -m pytest tests/hardware -m hardware

size: $(VENV)/.dev  ## how large the house is, by room; notes what fell in tests/size.json
	@$(BIN)/python -m tests.size

bench: $(VENV)/.dev  ## put us beside our peers; writes benchmarks/results/
	$(BIN)/python -m benchmarks

strangers: .venv-strangers/.ready  ## others' programs on the simulated GPU; SOURCES=, PYTORCH=
	OMP_NUM_THREADS=1 .venv-strangers/bin/python -m benchmarks.strangers $(if $(SOURCES),--sources $(SOURCES)) $(if $(PYTORCH),--pytorch $(PYTORCH)) $(if $(ONLY),--only $(ONLY))

gallery: $(VENV)/.dev  ## draw every part and every view for the eye
	@$(BIN)/python -m tests.gallery build/gallery

golden: gallery  ## accept what is drawn now; look at the gallery first
	$(BIN)/python -m pytest tests/gallery --snapshot-update -q

notebooks: $(VENV)/.dev  ## run the course again and keep its outputs
	$(BIN)/python -m tests.notebooks

browser: $(VENV)/.browser  ## drive JupyterLab and Notebook 7 in Chromium; PICTURES=1 keeps what was seen
	PICTURES=$(PICTURES) $(BIN)/python -m pytest tests/browser tests/frontends -m browser -n auto --maxprocesses 2 --dist loadfile

map: $(VENV)/.dev  ## draw which room imports which, for CONTRIBUTING.md
	$(BIN)/python -m docs_build.room_map

words: $(VENV)/.dev  ## write the page of words from those that the program explains
	$(BIN)/python -m docs_build.words

docs: $(VENV)/.docs  ## build the pages; a dead link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "Look at them: $(BIN)/python -m http.server -d build/site"

clean:  ## remove everything that the other targets have made
	rm -rf $(VENV) .venv-cuda .venv-ipython-* .venv-torch-* .venv-strangers build dist .*_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing into $(VENV); the first time this takes a minute or more."
	@$(PIP) -e '.[torch,demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@$(PIP) -e '.[torch,demo,dev,loaders,ranks]'
	@touch $@

$(VENV)/.browser: $(VENV)/.dev
	@$(PIP) -e '.[torch,demo,dev,loaders,ranks,browser]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	@$(PIP) -e '.[torch,demo,dev,loaders,ranks,docs]'
	@touch $@

.PRECIOUS: .venv-ipython-%/.ready
.venv-ipython-%/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv .venv-ipython-$*
	.venv-ipython-$*/bin/python -m pip install -q --no-compile \
	    ipython==$* ipykernel nbclient nvidia-ml-py rich pytest pytest-xdist hypothesis
	@touch $@

.venv-cuda/.ready: pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c "from tests.fakes import cuda; cuda.refuse_other_machines()"
	$(PYTHON) -m venv .venv-cuda
	@mkdir -p build
	@grep -v '^torch==' constraints.txt >build/constraints-cuda.txt
	.venv-cuda/bin/python -m pip install -q --no-compile -c build/constraints-cuda.txt \
	    torch==$(CUDA_TORCH) $(CUDA_HEADER) -e '.[torch,demo,dev,loaders,ranks]'
	@touch $@

.PRECIOUS: .venv-torch-%/.ready
.venv-torch-%/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv .venv-torch-$*
	.venv-torch-$*/bin/python -m pip install -q torch==$* numpy \
	    ipython ipykernel nbclient nvidia-ml-py rich pytest pytest-xdist hypothesis expecttest
	@touch $@

.venv-strangers/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-strangers
	.venv-strangers/bin/python -m pip install -q torch==2.14.1 torchvision==0.29.1
	.venv-strangers/bin/python -m pip install -q \
	    transformers timm lightning accelerate einops tensordict tensorboard pandas matplotlib scipy \
	    requests psutil pytest expecttest hypothesis -e '.[torch,demo]'
	@touch $@
