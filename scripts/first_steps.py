"""Walk the steps of a user with the built wheel, in a fresh environment outside the clone.

    python scripts/first_steps.py                 build the wheel first (pip fetches the build backend)
    python scripts/first_steps.py --wheel FILE    take a wheel that exists

The fresh environment sees the packages of this interpreter through a .pth file, so nothing large is installed, but not
the clone. The walk stops at the first command that fails and prints its output.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Walk:
    """A fresh environment and an empty folder, in which commands are tried one after another."""

    def __init__(self, place: Path, wheel: Path) -> None:
        venv.create(place / "venv", with_pip=True)
        python = place / "venv" / "bin" / "python"
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        packages = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
        packages.joinpath("packages_of_the_parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--ignore-installed", wheel]
        subprocess.run(install, check=True)
        self.oelm, self.python = place / "venv" / "bin" / "oelm", python
        self.folder = place / "project"
        self.folder.mkdir()
        # Without PYTHONPATH, so that the source of the clone cannot replace a file that the wheel lacks.
        self.environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def go(self, *words: str | Path, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command in the folder; return its output, or stop the walk."""
        began = time.monotonic()
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        shown = " ".join(["oelm" if word is self.oelm else str(word).partition("\n")[0] for word in words])
        print(
            f"{'ok  ' if done.returncode in codes else 'FAIL'} {time.monotonic() - began:6.1f} s  {shown}", flush=True
        )
        if done.returncode not in codes:
            sys.exit(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def verb(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run an oelm command."""
        return self.go(self.oelm, *words, codes=codes)


def take_first_steps(walk: Walk) -> None:
    """Try the first steps in the order in which a user takes them."""
    where = walk.go(walk.python, "-c", "import oelm; print(oelm.__file__)").strip()
    if str(ROOT) in where:
        sys.exit(f"oelm was imported from the clone: {where}")
    walk.verb("version")
    for line in walk.verb("help").split("start here:")[0].splitlines():
        verb = line[2:].partition(" ")[0]
        if line.startswith("  ") and verb not in ("help", "version"):
            walk.verb("help", verb)
    for what in ("methods", "models", "corpora", "tasks"):
        if not json.loads(walk.verb("list", what, "--json")):
            sys.exit(f"oelm list {what} is empty")
    walk.verb("doctor", "--json")
    walk.verb("completion", "bash")
    walk.verb("inspect", "medium-512", "--method", "oelm-freeze")
    walk.verb("cost", "medium-512", "--method", "oelm-fast")
    walk.verb("train", "--size", "nano", "--data.vocab-size", "300", "--data.tokens", "20000", "--train.steps", "20",
              "--method", "oelm-freeze", "--out", "one-run")  # fmt: skip
    walk.verb("generate", "one-run", "--prompt", "Once", "--tokens", "5")
    walk.verb("train", "--continue-from", "one-run", "--steps", "5", "--out", "longer-run")
    walk.verb("export", "longer-run", "exported")
    walk.verb("verify", "longer-run")
    rows = [f"the {good} film number {i}\t{int(good == 'fine')}\n" for i in range(40) for good in ("fine", "dull")]
    (walk.folder / "rows.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    walk.verb("train", "--task", "mine", "--from", "rows.tsv", "--texts", "sentence", "--label", "label", "--model",
              "bert-tiny", "--vocab-size", "300", "--method", "oelm-freeze", "--train.epochs", "1",
              "--out", "labelled")  # fmt: skip
    if "label" not in json.loads(walk.verb("predict", "labelled", "--text", "a fine film", "--json").splitlines()[-1]):
        sys.exit("oelm predict gives no label")
    walk.verb("export", "labelled", "exported-classifier")
    walk.verb("new", "study", "mine")
    study = walk.folder / "mine.py"
    study.write_text(study.read_text().replace("steps=150", "steps=12").replace("500_000", "50_000"))
    walk.verb("plan", "mine.py")
    walk.verb("run", "mine.py")
    for language in ("en", "zh"):
        walk.verb("report", "mine.py", "--lang", language)
    walk.verb("report", "runs", "--all")
    walk.verb("status", "mine.py")
    walk.go(walk.python, "-c", USE)


USE = """\
import oelm, torch
from transformers import BertConfig, BertForSequenceClassification
model = BertForSequenceClassification(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                 intermediate_size=64, vocab_size=100))
print(oelm.apply(model, "frozen-as-is"))
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-3)
model(torch.ones(2, 8, dtype=torch.long), labels=torch.tensor([0, 1])).loss.backward()
optimizer.step()
oelm.verify_frozen(model, optimizer)
oelm.remove(model)
oelm.apply(model, "oelm-progressive:0.2-0.8", scheduled=True)
optimizer = torch.optim.AdamW(oelm.parameter_groups(model, lr=1e-3))
schedule = oelm.schedule(model, optimizer, steps=4)
for _ in range(4):
    model(torch.ones(2, 8, dtype=torch.long), labels=torch.tensor([0, 1])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
print(oelm.load("one-run"), oelm.records("runs"), oelm.compare("mine.py").table())
"""


def main() -> None:
    """Build or take the wheel, and walk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, help="a wheel that exists, instead of building one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        wheel = asked.wheel
        if wheel is None:
            build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, str(ROOT)]
            subprocess.run(build, check=True)
            (wheel,) = Path(place).glob("oelm-*.whl")
        take_first_steps(Walk(Path(place), wheel.absolute()))


if __name__ == "__main__":
    main()
