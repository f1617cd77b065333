"""`python -m oelm` and the `oelm` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from oelm.cli import dispatch

    sys.exit(dispatch(sys.argv[1:]))


if __name__ == "__main__":
    main()
