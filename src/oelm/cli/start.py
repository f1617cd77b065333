"""`oelm demo`, `oelm new` and `oelm list`: the first steps, which need neither a clone nor a file."""

from __future__ import annotations

import json
from collections.abc import Callable
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
    from oelm.spec.methods import METHOD_FORMS, METHODS, PARTS

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
    from oelm.spec.model import GPT_SIZES, block_parameters

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
    from oelm.data.sources import HUB_CORPORA, STORIES
    from oelm.data.tables import PACKAGED
    from oelm.spec.data import PROBE_SIZES

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
