"""Whether a folder holds what is asked for: requests compared by the content of their inputs."""

from __future__ import annotations

from pathlib import Path

from oelm.data.meta import META, InputFile, Request, TokenMeta
from oelm.data.progress import Progress
from oelm.errors import BadData, UsageError
from oelm.files import sha256_of


def hashed(request: Request, progress: Progress) -> Request:
    """Name the input files by their content."""
    progress.begin("hashing the input", sum(file.size for file in request.inputs))
    done, inputs = 0, []
    for file in request.inputs:
        inputs.append(file.model_copy(update={"sha256": _content(file)}))
        done += file.size
        progress.update(done, 0)
    progress.end()
    return request.model_copy(update={"inputs": tuple(inputs)})


def _content(file: InputFile) -> str:
    try:
        return sha256_of(Path(file.path))
    except OSError as error:
        raise BadData(f"{file.path} cannot be read: {error.strerror}. Give yourself access to it.") from error


def require_same(made: Request, asked: Request, directory: Path) -> None:
    """Raise if a folder was, or is being, made from another request than the one asked."""
    for field in Request.model_fields:
        if field != "inputs":
            require_equal(field, getattr(made, field), getattr(asked, field), directory)
    if len(made.inputs) != len(asked.inputs) or not all(map(_same_file, made.inputs, asked.inputs)):
        raise UsageError(
            f"{directory} was made from other input than is given now ({_named(made)}; now {_named(asked)}), "
            "and nothing is overwritten. Choose another folder with --out, or delete this one."
        )


def require_equal(field: str, made: object, asked: object, directory: Path) -> None:
    """Raise if a folder was made with another value of a field."""
    if made != asked:
        raise UsageError(
            f"{directory} was made with {field} {made!r}, not {asked!r} as asked now, and nothing is "
            "overwritten. Choose another folder with --out, or delete this one."
        )


def _same_file(made: InputFile, asked: InputFile) -> bool:
    if made.size != asked.size:
        return False
    same_state = (made.path, made.mtime_ns) == (asked.path, asked.mtime_ns)
    return same_state or made.sha256 == _content(asked)


def _named(request: Request) -> str:
    size = sum(file.size for file in request.inputs)
    return f"{len(request.inputs)} files of {size:,} bytes, the first {request.inputs[0].path}"


def require_whole(directory: Path, meta: TokenMeta) -> None:
    """Raise if a file has not the size that is stated of it; its content is checked when it is opened."""
    for split, statement in meta.files.items():
        path = directory / f"{split}.bin"
        size = path.stat().st_size if path.exists() else 0
        if size != 2 * statement.num_tokens:
            raise BadData(
                f"{path} has {size:,} bytes, not the {2 * statement.num_tokens:,} of its {META}: it was cut "
                f"or changed after it was prepared. Restore it, or delete {directory} and run the command "
                "again."
            )
