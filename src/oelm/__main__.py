"""`python -m oelm` and the `oelm` command."""

from __future__ import annotations

import io
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from oelm.cli import dispatch
    from oelm.cores import wait_without_spinning

    wait_without_spinning()
    for stream in (sys.stdout, sys.stderr):  # a terminal of another encoding shows the characters that it does not have
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(dispatch(sys.argv[1:]))


if __name__ == "__main__":
    main()
