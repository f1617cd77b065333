"""The command line: a table of verbs, each a function `<verb>_command` in a module that is imported when it is called.

Nothing heavy is imported here, so `oelm --help` answers at once. Every error that is meant for the user becomes one
message and an exit code here; any other exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import importlib
import os
import sys

from oelm import __version__
from oelm.errors import INTERRUPTED, OelmError, UnknownName, is_out_of_memory
from oelm.files import UNWRITABLE, escape_controls

# verb -> the module of oelm.cli with its function, and what it does
VERBS = {
    "demo": ("start", "run the demo study, minutes on a CPU"),
    "new": ("start", "write a study file to start from"),
    "list": ("start", "list the methods, models, corpora or tasks"),
    "doctor": ("doctor", "check this machine, and say what is slow or missing"),
    "inspect": ("inspect", "show what a method changes and freezes in a model"),
    "cost": ("inspect", "count the FLOPs and memory of a training step, and what a method saves"),
    "prepare": ("prepare", "turn text into token files, or check labelled text"),
    "train": ("train", "train one model"),
    "plan": ("run", "show the runs, time and memory of a study before it runs"),
    "run": ("run", "run a study, or continue it where it stopped"),
    "status": ("status", "show the state of every run of a study"),
    "logs": ("status", "print the log of a run"),
    "cancel": ("status", "stop the runs of a study after they have saved a checkpoint"),
    "compare": ("report", "compare runs, and refuse unfair comparisons"),
    "report": ("report", "compare the runs of a study and write its report"),
    "show": ("archive", "print the record of a run"),
    "archive": ("archive", "pack the runs of a study into one small file"),
    "unpack": ("archive", "unpack the runs of an archived study"),
    "verify": ("archive", "check the files of runs, data and archives, and repair a copy"),
    "serve": ("status", "show studies and runs in a browser, live while they train"),
    "note": ("status", "write notes and tags about runs, which the results page shows"),
    "evaluate": ("model", "measure a trained model on a split"),
    "generate": ("model", "continue a text with a trained model"),
    "predict": ("model", "predict the labels of texts with a fine-tuned model"),
    "export": ("model", "write a trained model as a Hugging Face folder with a model card"),
    "import-checkpoint": ("published", "convert a checkpoint of the published study"),
    "import-run": ("published", "convert a run folder of the published study into a record"),
    "bench": ("doctor", "measure speed and memory"),
    "completion": ("start", "print a script that completes oelm in a shell"),
    "help": ("", "explain a verb: oelm help train"),
    "version": ("", "print the version"),
}

USAGE = f"""\
oelm {__version__}: freeze parts of a Transformer's attention, run the ablation, believe the answer.

usage: oelm VERB [options]        oelm help VERB explains a verb

{{verbs}}

start here:
  oelm demo                                             three methods, three seeds, minutes on a CPU
  oelm new study mine                                   your own study, to change and run
  oelm inspect medium-512 --method oelm-freeze          what freezing Q and K means in numbers
"""


def say(text: str, *, end: str = "\n", stderr: bool = False) -> None:
    """Print text that comes from a file or names one: with control characters escaped, and at once."""
    print(escape_controls(text), end=end, flush=True, file=sys.stderr if stderr else sys.stdout)


def dispatch(argv: list[str]) -> int:
    """Run a command line and return its exit code. Errors for the user are printed to standard error."""
    try:
        return _call(argv)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone. Without this, Python complains when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OelmError as error:
        return _fail(f"{type(error).__name__}: {error}", error.exit_code)
    except (UnicodeError, OSError, MemoryError, RuntimeError) as error:
        words = _explain_system_error(error)
        if words is None:
            raise
        return _fail(f"{type(error).__name__}: {words}")


def _explain_system_error(error: Exception) -> str | None:
    """Return what went wrong outside this program; None if it is a bug of this program."""
    if isinstance(error, UnicodeError):
        return f"a text is not valid UTF-8 ({error}). Convert it first."
    if isinstance(error, OSError):
        is_known = error.filename is not None or error.errno in UNWRITABLE
        return f"{error.filename or 'a file could not be written'}: {error.strerror}" if is_known else None
    if not is_out_of_memory(error):
        return None
    return f"out of memory. {' '.join(str(error).split())[:200]}".rstrip()


def _fail(message: str, code: int = OelmError.exit_code) -> int:
    """Print an error and return the exit code. Control characters, which names may contain, are escaped."""
    say(f"oelm: {message}", stderr=True)
    return code


def _call(argv: list[str]) -> int:
    verb, *rest = argv or ["--help"]
    if verb == "help" and rest:
        verb, rest = rest[0], [*rest[1:], "--help"]
    if verb in ("-h", "--help", "help"):
        width = max(map(len, VERBS))
        print(USAGE.format(verbs="\n".join(f"  {verb:{width}}  {what}" for verb, (_, what) in VERBS.items())), end="")
        return 0
    if verb in ("--version", "version"):
        print(__version__)
        return 0
    if verb not in VERBS:
        raise UnknownName("verb", verb, VERBS)
    module = importlib.import_module(f"oelm.cli.{VERBS[verb][0]}")
    try:
        return int(getattr(module, f"{verb.replace('-', '_')}_command")(rest))
    except SystemExit as leaving:  # the parser exits after it has printed a help text
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
