"""`oelm completion`: a script that completes verbs, flags, names and files in bash, zsh or fish.

tyro can complete the flags of one command; this covers all verbs. The flags come from the help texts, so a new verb or
flag needs no line here. The script is static, because a shell that starts Python at every TAB is too slow.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from oelm.cli.terminal import parse

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
    from oelm.cli.bench import BENCHES

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
    from oelm.data.sources import HUB_CORPORA, STORIES
    from oelm.data.tables import PACKAGED
    from oelm.spec.methods import METHOD_FORMS, METHODS
    from oelm.spec.model import GPT_SIZES

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
