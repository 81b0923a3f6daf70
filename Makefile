# Every target sets up its own virtual environment; nothing but Python >= 3.11 and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
BOTH_CORES := -n 2 --dist loadfile --no-loadscope-reorder  # whole files on two processes, so that fixtures of a module are made once; slow files first

.PHONY: demo test docs numeric check bench gpu gpu-coverage results clean

demo: $(READY)  ## backbone, store, phi, baselines, tables, figures, report, on the embedded glyphs; repeated, it resumes
	$(BIN)/ppa demo

test: $(READY)  ## the test suite
	$(BIN)/python -m pytest $(BOTH_CORES)

docs: $(READY)  ## the documentation site, build/site/index.html; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

numeric: $(READY)  ## tests that compare floating-point results, under every instruction set here, one and two threads
	.ci/numeric

check: $(READY)  ## lint, types, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(BOTH_CORES)

bench: $(READY)  ## the figures of the README; needs about 60 GB of disk and three hours
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[bench]'
	for name in layouts imports means stream build bucket_appends phi pretrain soak search meta meta_phi remote cluster phi_ranks memory scale photos photos_start photos_unknown audit teach teach_kills simulation analysis; do $(BIN)/python -m tests.bench.$$name || exit 1; done

gpu:  ## every path on the GPU against the CPU, inference at ImageNet's size, gpu-report.md; written without a GPU, never yet run on one
	@nvidia-smi -L 2>/dev/null | grep -q GPU || { echo "make gpu needs an NVIDIA GPU, but nvidia-smi finds none here; nothing was run" >&2; exit 1; }
	$(MAKE) $(READY)
	$(BIN)/python -m tests.bench.gpu gpu-report.md

gpu-coverage: $(READY)  ## lines for accelerators alone that no test executes, on this machine without one
	$(BIN)/python -m pip install -q coverage
	$(BIN)/python -m tests.bench.gpu_coverage

results: $(READY)  ## the tables on mini-ImageNet's activations: make results DATA=folder
	PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/miniimagenet.sh $(DATA) results

$(READY): pyproject.toml setup.py constraints.txt actstore/search/kernels.c actstore/compute/halves.c $(wildcard actstore/search/loops/*)
	@echo "setting up $(VENV) (a few minutes the first time: torch and faiss are large)"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	# torch first and pinned: asked for by another package, pip would take a build with gigabytes of CUDA
	$(BIN)/python -m pip install -q -c constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) bench-out demo-out gpu-report.md results build *.egg-info
