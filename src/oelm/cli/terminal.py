"""What all verbs share: `parse` reads a command line into a dataclass, `print_table` prints a table.

A wrong command line raises a UsageError that names the flag, whichever of the three finds it: tyro (words), pydantic
(the range of a number) or the validator of a spec (fields that contradict each other).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro
from pydantic import Field, TypeAdapter, ValidationError
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructTypeInfo

from oelm.errors import InvalidSpec, UsageError
from oelm.spec import Spec, explain_validation

if TYPE_CHECKING:
    from oelm.console import Console

_T = TypeVar("_T")
Count = Annotated[int, Field(ge=1, lt=2**63)]
Size = Annotated[int, Field(ge=1, le=1_000_000)]
"""A dimension of a tensor. The bound keeps products of several dimensions below 2^63."""
Seed = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


def parse(arguments: type[_T], argv: list[str], prog: str, default: _T | None = None) -> _T:
    """Fill in a dataclass of arguments from the words of a command line.

    Raises:
        UsageError: a flag is unknown or missing, or has an impossible value.
        SystemExit: the help text was requested and has been printed.

    """
    registry = ConstructorRegistry()
    registry.struct_rule(_explain_specs)
    config = (tyro.conf.FlagCreatePairsOff,)
    options: dict[str, Any] = {} if default is None else {"default": default}
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            asked: _T = tyro.cli(arguments, args=argv, prog=prog, registry=registry, config=config, **options)
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            raise
        raise UsageError(f"{_read_error_box(box.getvalue())} `{prog} --help` explains every flag.") from None
    with flags_in_errors(prog):
        TypeAdapter(arguments).validate_python(vars(asked))
    return asked


def has_flag(flag: str, argv: list[str]) -> bool:
    """Whether a flag is on the command line, as `--flag value` or `--flag=value`."""
    return any(word.partition("=")[0] == flag for word in argv)


@contextmanager
def flags_in_errors(prog: str, **flags: str) -> Iterator[None]:
    """Turn the ValidationError of a spec into an InvalidSpec that names flags; `flags` are those named differently."""
    try:
        yield
    except ValidationError as error:
        words = explain_validation(error)
        for name in {str(each["loc"][0]) for each in error.errors() if each["loc"]}:
            words = re.sub(rf"(^|; ){name}(?=[.:])", rf"\1--{flags.get(name, name).replace('_', '-')}", words)
        raise InvalidSpec(f"{_plain(words)}. `{prog} --help` explains every flag.") from error


def _read_error_box(box: str) -> str:
    """Turn the box that tyro draws around an error, with or without box characters, into sentences."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", box)
    title = 1 if plain.startswith("╭") else 2  # without box characters a rule follows the title
    lines = [line[2:].rstrip(" │") for line in plain.splitlines()[title:]]
    parts = re.split(r"^[─-]{3,}$", "\n".join(lines), flags=re.MULTILINE)
    message = " ".join(parts[0].split())
    if message.startswith("Missing from"):  # the names are indented by four, their help texts by eight
        missing = re.findall(r"^ {4}(\S.*)$", parts[0], re.MULTILINE)
        return f"Missing: {', '.join(missing)}."
    message = re.sub(r"^Error parsing (--\S+): ", r"\1: ", message)
    if spec := re.match(r"Error parsing ([\w.-]+): (?:(\w+): )?", message):
        prefix, field, message = spec[1], spec[2], message[spec.end() :]
        if field:
            message = f"--{prefix}.{field.replace('_', '-')}: {message}"
        else:  # an error of several fields
            message = re.sub(r"\b(\w+)=", lambda each: f"--{prefix}.{each[1].replace('_', '-')} ", message)
    guesses = next((part for part in parts if "Perhaps you meant" in part), "")
    near = re.search(r"^ {4}(?:-\w, )?(--[\w.-]+)", guesses, re.MULTILINE)
    return _plain(message) + (f". Did you mean {near[1]}?" if near else ".")


def _plain(message: str) -> str:
    """Reword the phrases of pydantic and Python about values."""
    message = message.replace(": Input should be ", " must be ").replace(" greater than or equal to ", " at least ")
    optional = re.search(r"no type matching (\S+) could be instantiated from \[(.*?)\]", message)
    if optional:  # of a flag that may also be None
        kind = "a whole number" if "INT" in optional[1] else "a number" if "FLOAT" in optional[1] else optional[1]
        message = f"{message[: optional.start()]}{optional[2]} is not {kind}"
    message = re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is not a whole number", message)
    message = re.sub(r"could not convert string to float: (.*)", r"\1 is not a number", message)
    return message.rstrip(".")


def _explain_specs(wanted: StructTypeInfo) -> StructConstructorSpec | None:
    """Build a spec with tyro's own rule, but report its validation errors in our words."""
    # The mark says that this rule has been applied already, so the second call reaches tyro's own rule.
    if explain_validation in wanted.markers or not (isinstance(wanted.type, type) and issubclass(wanted.type, Spec)):
        return None
    made = ConstructorRegistry.get_struct_spec(replace(wanted, markers=(*wanted.markers, explain_validation)))
    if not isinstance(made, StructConstructorSpec):
        return None

    def instantiate(**fields: Any) -> Any:
        try:
            return made.instantiate(**fields)
        except ValidationError as error:
            raise ValueError(explain_validation(error)) from error

    instantiate.__doc__ = wanted.type.__doc__  # the help text shows it
    return replace(made, instantiate=instantiate)


def print_table(
    console: Console, headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: Sequence[str], title: str = ""
) -> None:
    """Print rows under their headings; columns in `words` are aligned left, numbers right."""
    from oelm.report.render import Column, Line, Table, render_terminal

    columns = tuple(Column("words" if heading in words else "number", heading) for heading in headings)
    table = Table("", columns, tuple(Line(tuple(row)) for row in rows))
    console.print(render_terminal(table, title, console.width))
