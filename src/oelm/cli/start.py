"""`oelm demo`, `oelm new`, `oelm list` and `oelm completion`: first steps, which need neither a clone nor a file."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import tyro

from oelm.cli.terminal import Count, parse
from oelm.errors import InvalidSpec, UsageError
from oelm.spec.method import MethodSpec

TEMPLATE = "study_template.txt"
"""The study that `oelm new study` writes, with NAME where its name belongs."""


@dataclass
class DemoArguments:
    """Run the demo: three methods and three seeds of a mini GPT on embedded stories, then the report.

    It takes at most 4 minutes on 2 quiet cores and needs neither a GPU nor the network. The same command continues an
    interrupted demo.

      oelm demo
      oelm demo --out /tmp/runs --slots 1
    """

    out: Path = Path("runs")
    """Folder to write. The demo gets the folder `demo` in it."""
    slots: Count | None = None
    """Number of runs at a time. By default as many as fit the cores."""


def demo_command(argv: list[str]) -> int:
    """Run the study that the package carries."""
    asked = parse(DemoArguments, argv, "oelm demo")
    from oelm import demo
    from oelm.cli.run import run_command

    slots = [] if asked.slots is None else ["--slots", str(asked.slots)]
    code = run_command([str(demo.__file__), "--out", str(asked.out), *slots])
    if not code:
        print(
            f"Next: `oelm serve {asked.out}` shows the runs in a browser, `oelm new study NAME` writes your own study."
        )
    return code


@dataclass
class NewArguments:
    """Write a study file to start from: commented, and finished in two minutes on 2 quiet cores.

    A file that exists is never overwritten.

      oelm new study mine
      oelm new study mine --out studies
    """

    kind: Annotated[Literal["study"], tyro.conf.Positional]
    """What to write."""
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Name of the study, of its file and of the folder of its runs."""
    out: Path = Path()
    """Folder to write NAME.py into. By default this one."""


def new_command(argv: list[str]) -> int:
    """Write a commented study file, and never over another file."""
    asked = parse(NewArguments, argv, "oelm new")
    if not asked.name.replace("-", "").replace("_", "").isalnum():
        raise InvalidSpec(f"{asked.name!r} cannot name a study file. Use letters, digits, - and _.")
    path = asked.out / f"{asked.name}.py"
    text = resources.files("oelm.cli").joinpath(TEMPLATE).read_text(encoding="utf-8")
    asked.out.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text.replace("NAME", asked.name))
    except FileExistsError as error:
        raise UsageError(f"{path} exists already. Choose another name, or remove the file.") from error
    print(f"{path}: a study to change. `oelm plan {path}` shows its runs, `oelm run {path}` runs it.")
    return 0


@dataclass
class ListArguments:
    """List the names that other commands accept.

    Each line has a name and what it is, described from the code.

      oelm list methods
      oelm list models --json
    """

    what: Annotated[Literal["methods", "models", "corpora", "tasks"], tyro.conf.Positional]
    """methods (--method), models (inspect, cost, train), corpora (--data.corpus), or tasks (--task)."""
    json: bool = False
    """Print JSON: a list of objects, one for each row."""


Rows = list[dict[str, str]]


def list_command(argv: list[str]) -> int:
    """Print one table of names."""
    asked = parse(ListArguments, argv, "oelm list")
    lists: dict[str, Callable[[], tuple[Rows, str]]] = {
        "methods": _list_methods,
        "models": _list_models,
        "corpora": _list_corpora,
        "tasks": _list_tasks,
    }
    rows, note = lists[asked.what]()
    if asked.json:
        print(json.dumps(rows, indent=1))
        return 0
    width = max(len(next(iter(row.values()))) for row in rows)
    for name, *about in (tuple(row.values()) for row in rows):
        print(f"{name:{width}}  {'; '.join(filter(None, about))}")
    print(note)
    return 0


def _list_methods() -> tuple[Rows, str]:
    from oelm.spec.method import METHOD_FORMS, METHODS, PARTS

    rows = [{"method": name, **_describe_method(method)} for name, method in METHODS.items()]
    forms = "\n".join(f"  {usage}" for usage, _ in METHOD_FORMS.values())
    parts = ", ".join(f"+{part}" for part in PARTS)
    return rows, f"Forms with a parameter:\n{forms}\nParts to add to any of them, as in oelm+bias: {parts}"


def _describe_method(method: MethodSpec) -> dict[str, str]:
    """Describe a method by its fields, so that the words cannot disagree with it."""
    init = method.init
    start = {"host": "Q and K as in the model", "absent": "without Q and K", "normal": "Gaussian Q and K"}.get(
        init.shape, f"{init.shape} Q and K"
    )
    start += ", within the current row space" if init.source == "current" else ""
    start += ", one QR over all heads" if init.scope == "global" else ""
    start += ", at the scale of orthogonal rows" if init.matched else ""
    return {
        "start": start,
        "frozen": f"frozen {' '.join(method.freeze.roles)}" if method.freeze.roles else "",
        "repairs": " + ".join(name.replace("_", " ") for name in method.repair.active()),
    }


def _list_models() -> tuple[Rows, str]:
    from oelm.models.build import CONFIGS, PACKAGES
    from oelm.spec.run import GPT_SIZES, block_parameters

    rows = [
        {"model": name, "kind": "our GPT", "weights": f"from scratch, {block_parameters(size):,} in its blocks"}
        for name, size in GPT_SIZES.items()
    ]
    rows += [
        {"model": name, "kind": "pretrained", "weights": f"package {package.name}"}
        for name, package in PACKAGES.items()
    ]
    rows += [
        {"model": name, "kind": config.config.removesuffix("Config"), "weights": config.hub or "none published"}
        for name, config in CONFIGS.items()
    ]
    return (
        rows,
        "Also a folder of a saved model, and any owner/name of the hub whose family docs/architectures.md lists.",
    )


def _list_corpora() -> tuple[Rows, str]:
    from oelm.data.sources import HUB_CORPORA, PACKAGED, STORIES
    from oelm.spec.run import PROBE_SIZES

    rows = [{"corpus": STORIES, "source": "in this package, endless, with a known floor"}]
    rows += [
        {"corpus": f"{kind}:{least}", "source": f"generated probe, {kind}:{least} to {kind}:{most}"}
        for kind, (least, most) in PROBE_SIZES.items()
    ]
    rows += [{"corpus": name, "source": f"package {corpus.package}"} for name, corpus in PACKAGED.items()]
    rows += [{"corpus": name, "source": f"hub: {corpus.repository}"} for name, corpus in HUB_CORPORA.items()]
    rows += [
        {"corpus": path.parent.name, "source": f"prepared: {path.parent}"} for path in Path("data").glob("*/meta.json")
    ]
    return rows, "Local text may have any name: `oelm prepare NAME --from PATH`."


def _list_tasks() -> tuple[Rows, str]:
    from oelm.data.labelled import LABELLED_CORPORA

    rows = [
        {
            "task": name,
            "texts": ", ".join(names[0] for names in corpus.texts),
            "labels": ", ".join(corpus.labels) or "found in the data",
            "source": f"hub: {corpus.hub.repository}" if corpus.hub else "in this package",
        }
        for name, corpus in LABELLED_CORPORA.items()
    ]
    return rows, "Labelled text of your own: `oelm train --task NAME --from FILE --texts COLUMN --label COLUMN`."


# Completion of verbs, flags, names and files in bash, zsh or fish. tyro can complete the flags of one command; this
# covers all verbs. The flags come from the help texts, so a new verb or flag needs no line here. The script is static,
# because a shell that starts Python at every TAB is too slow.

FLAG = re.compile(r"^[│\s]*(?:-\w, )?(--[a-z][\w.-]*)", re.MULTILINE)
"""A flag at the beginning of a line of a help text, in a box or not."""


@dataclass
class CompletionArguments:
    """Print a script that lets a shell complete verbs, flags, methods and files.

    Write it to the file that the shell reads, and again after an update. zsh needs `fpath+=~/.zfunc` before
    `compinit` in ~/.zshrc.

      oelm completion bash > ~/.local/share/bash-completion/completions/oelm
      oelm completion zsh > ~/.zfunc/_oelm
      oelm completion fish > ~/.config/fish/completions/oelm.fish
    """

    shell: Annotated[Literal["bash", "zsh", "fish"], tyro.conf.Positional]
    """The shell."""


def completion_command(argv: list[str]) -> int:
    """Print the script of a shell."""
    asked = parse(CompletionArguments, argv, "oelm completion")
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[asked.shell](), end="")
    return 0


def flags_of(verb: str, *words: str) -> list[str]:
    """Return the flags in the help text of a verb."""
    from oelm.cli import dispatch

    text = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "200"  # a narrow box would break long flags
    try:
        with redirect_stdout(text):
            dispatch([verb, *words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    plain = re.sub(r"\x1b\[[\d;]*m", "", text.getvalue())
    return sorted(set(FLAG.findall(plain)))


def words_after() -> dict[str, list[str]]:
    """Return verb -> the words that may follow it: its flags, and names where it takes names."""
    from oelm.cli import VERBS
    from oelm.cli.doctor import BENCHES

    known = {verb: flags_of(verb) for verb, (module, _) in VERBS.items() if module and verb != "bench"}
    for verb in ("train", "prepare"):
        known[verb] = sorted({*known[verb], *flags_of(verb, "--task", "sst2"), "--task"})
    known |= {
        "help": list(VERBS),
        "bench": sorted({*BENCHES, *(flag for bench in BENCHES for flag in flags_of("bench", bench))}),
        "list": [*known["list"], "methods", "models", "corpora", "tasks"],
        "new": [*known["new"], "study"],
        "completion": ["bash", "zsh", "fish"],
    }
    return known


def values_of_flags() -> dict[str, list[str]]:
    """Return flag -> the names it takes. After any other flag the shell completes files."""
    from oelm.data.labelled import LABELLED_CORPORA
    from oelm.data.sources import HUB_CORPORA, PACKAGED, STORIES
    from oelm.spec.method import METHOD_FORMS, METHODS
    from oelm.spec.run import GPT_SIZES

    return {
        "--method": [*METHODS, *(f"{form}:" for form in METHOD_FORMS)],
        "--size": list(GPT_SIZES),
        "--task": list(LABELLED_CORPORA),
        "--data.corpus": [STORIES, *PACKAGED, *HUB_CORPORA],
        "--lang": ["en", "zh"],
    }


def _cases(words: Mapping[str, list[str]], variable: str) -> str:
    return "\n".join(f'    {name}) {variable}="{" ".join(each)}" ;;' for name, each in words.items())


def _bash() -> str:
    from oelm.cli import VERBS

    return f"""\
# Completion of oelm for bash, written by `oelm completion bash`.
_oelm() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words="" values=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(VERBS)}" -- "$word"))
    return
  fi
  case "$before" in
{_cases(values_of_flags(), "values")}
  esac
  if [ -n "$values" ]; then
    COMPREPLY=($(compgen -W "$values" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{_cases(words_after(), "words")}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  case "$word" in
    -*) ;;
    *) COMPREPLY+=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _oelm oelm
"""


def _zsh() -> str:
    return f"""\
#compdef oelm
# Completion of oelm for zsh, written by `oelm completion zsh`: the script of bash, which zsh can run.
autoload -U +X bashcompinit && bashcompinit
{_bash()}"""


def _fish() -> str:
    from oelm.cli import VERBS

    lines = ["# Completion of oelm for fish, written by `oelm completion fish`."]
    lines += [
        f"complete -c oelm -n __fish_use_subcommand -f -a {verb} -d '{what}'" for verb, (_, what) in VERBS.items()
    ]
    values = values_of_flags()
    for verb, words in words_after().items():
        seen = f"complete -c oelm -n '__fish_seen_subcommand_from {verb}'"
        for word in words:
            if not word.startswith("--"):
                lines.append(f"{seen} -a {word}")
            elif word in values:
                lines.append(f"{seen} -l {word[2:]} -x -a '{' '.join(values[word])}'")
            else:
                lines.append(f"{seen} -l {word[2:]} -F")
    return "\n".join(lines) + "\n"
