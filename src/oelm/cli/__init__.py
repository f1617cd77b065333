"""The command line: a table of verbs, each a module that is imported when it is called.

Nothing heavy is imported here, so that `oelm --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from oelm import __version__
from oelm.errors import INTERRUPTED, OelmError, UnknownName
from oelm.files import UNWRITABLE

if TYPE_CHECKING:
    from tyro.constructors import StructConstructorSpec, StructTypeInfo

T = TypeVar("T")

# verb -> what it does; its module is oelm.cli.<verb>, with hyphens as underscores
VERBS = {
    "inspect": "show what a method changes and freezes in a model",
    "cost": "count what a training step costs, and what a method saves of it",
    "prepare": "turn text into token files",
    "train": "carry out one run",
    "plan": "show what a study takes before it runs",
    "run": "carry out a study, and continue it where it stopped",
    "status": "show where the runs of a study stand",
    "logs": "print what a run has said",
    "cancel": "ask runs to save themselves and stop",
    "compare": "compare runs, and refuse those that are unfair to one another",
    "report": "compare the runs of a study and write the page",
    "show": "print the record of a run",
    "archive": "pack the runs of a study into one file, to be committed",
    "unpack": "turn an archive into folders of runs again",
    "serve": "show studies and runs in a browser, live while they train",
    "evaluate": "measure a trained model on a split",
    "generate": "continue a text with a trained model",
    "export": "write a trained model as a plain Hugging Face GPT-2",
    "import-checkpoint": "read a checkpoint of the published study",
    "import-run": "read a run that the published program left, as a record",
    "bench": "measure speed against what one could take instead",
}

USAGE = f"""\
oelm {__version__}: freeze parts of a Transformer's attention, run the ablation, believe the answer.

usage: oelm VERB [options]        oelm VERB --help explains each

{{verbs}}

start here:
  oelm run studies/demo.py                              three methods on two seeds, in minutes, on a CPU
  oelm inspect medium-512 --method oelm-freeze          what freezing Q and K means in numbers
"""


def dispatch(argv: list[str]) -> int:
    """Call a verb, and end as a command should."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        width = max(map(len, VERBS))
        print(USAGE.format(verbs="\n".join(f"  {verb:{width}}  {what}" for verb, what in VERBS.items())), end="")
        return 0
    if argv[0] == "--version":
        print(__version__)
        return 0
    try:
        return _called(*argv)
    except KeyboardInterrupt:
        print("oelm: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; silence Python's own complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _called(verb: str, *arguments: str) -> int:
    """Call a verb; turn errors that were meant for people into a message and an exit code."""
    try:
        if verb not in VERBS:
            raise UnknownName("verb", verb, VERBS)
        module = importlib.import_module(f"oelm.cli.{verb.replace('-', '_')}")
        return int(module.main(list(arguments)))
    except OelmError as error:
        print(f"oelm: {type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        # A folder of somebody else's, a full disk, a file where a folder should be: nothing that a traceback explains.
        if error.filename is None and error.errno not in UNWRITABLE:
            raise
        where = f"{error.filename}: " if error.filename else "a file could not be written: "
        print(f"oelm: {type(error).__name__}: {where}{error.strerror}", file=sys.stderr)
        return OelmError.exit_code


def parse(arguments: type[T], argv: list[str], prog: str, **options: Any) -> T:
    """Read a command line whose flags are fields of specs; `options` are those of `tyro.cli`.

    A value that cannot be is told as any other wrong flag is, and in the words of `in_words`: by itself tyro would
    quote pydantic.
    """
    import tyro
    from tyro.constructors import ConstructorRegistry

    registry = ConstructorRegistry()
    registry.struct_rule(_refused_in_words)
    asked: T = tyro.cli(arguments, args=argv, prog=prog, registry=registry, **options)
    return asked


def _refused_in_words(wanted: StructTypeInfo) -> StructConstructorSpec | None:
    """Make a spec as tyro's own rule does, but refuse in words what cannot be."""
    from pydantic import ValidationError
    from tyro.constructors import ConstructorRegistry, StructConstructorSpec

    from oelm.spec.base import Spec, in_words

    # The mark says that this rule has been asked already, and that tyro's own is meant.
    if in_words in wanted.markers or not (isinstance(wanted.type, type) and issubclass(wanted.type, Spec)):
        return None
    made = ConstructorRegistry.get_struct_spec(replace(wanted, markers=(*wanted.markers, in_words)))
    if not isinstance(made, StructConstructorSpec):
        return None

    def instantiate(**fields: Any) -> Any:
        try:
            return made.instantiate(**fields)
        except ValidationError as error:
            raise ValueError(in_words(error)) from error

    instantiate.__doc__ = wanted.type.__doc__  # which the help shows
    return replace(made, instantiate=instantiate)
