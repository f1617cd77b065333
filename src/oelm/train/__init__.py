"""Training: one loop, read top to bottom.

`oelm.train(run)` trains one run. The attribute `train` of `oelm` is this package as soon as anything imports a module
of it, so the package itself can be called (docs/decisions/038-oelm-train-is-called.md).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Train one run: see `oelm.api.train`."""
        # By name: the loop itself must not depend on what is above it, and the rules for imports forbid it.
        return importlib.import_module("oelm.api").train(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
