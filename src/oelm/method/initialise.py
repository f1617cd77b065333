"""What a method draws, written into a model's queries and keys."""

from __future__ import annotations

from torch import Tensor

from oelm.errors import BadShape
from oelm.method.orthogonal import draw, stream
from oelm.method.projection import Projection
from oelm.spec.method import InitSpec, Site
from oelm.spec.repair import heads_of

Place = tuple[Site, int]


def initialise(queries_and_keys: list[Projection], init: InitSpec, seed: int) -> None:
    """Draw each projection from a stream of its own; keys first, because queries may be asked to be like them.

    The law of K = bQ + sqrt(1 - b^2) Z is the same when queries and keys change places, and drawn in this order it
    holds for grouped heads as well: each query head of a group is as like the group's one key head.
    """
    keys: dict[Place, Tensor] = {}
    query_heads = {(p.site, p.layer): p.num_heads for p in queries_and_keys if p.role == "q"}
    for projection in sorted(queries_and_keys, key=lambda each: each.role):
        place, is_key = (projection.site, projection.layer), projection.role == "k"
        frame_HKI = None
        if not is_key and (init.correlation or init.same_heads):
            frame_HKI = keys[place].repeat_interleave(projection.num_heads // keys[place].shape[0], dim=0)
        purpose = stream(seed, "method", projection.name, projection.role)
        drawn_HKI = draw(
            init,
            projection.shape,
            purpose,
            current_HKI=projection.read(),
            keys_HKI=frame_HKI if init.correlation else None,
            first=_first_coordinate(projection, query_heads.get(place, projection.num_heads)),
        )
        if is_key:
            keys[place] = drawn_HKI
        elif frame_HKI is not None and init.same_heads:
            same = heads_of(init.same_heads, keys[place].shape[0]) * (projection.num_heads // keys[place].shape[0])
            drawn_HKI[:same] = frame_HKI[:same]
        projection.write(drawn_HKI)


def _first_coordinate(projection: Projection, query_heads: int) -> int:
    """Return where slices begin: queries at 0, keys so that no head compares a coordinate with itself.

    Behind all queries if there is room, so that each coordinate is read by one head only. Otherwise at the next head's
    place where every query head has a key head of its own, or at the last place, which no query head of the first
    group reads as long as there are two groups.
    """
    num_heads, head_size, input_size = projection.shape
    if projection.role == "q":
        return 0
    if (query_heads + num_heads) * head_size <= input_size:
        return query_heads * head_size
    return head_size if num_heads == query_heads else input_size - head_size


def refuse_uncorrelatable(queries_and_keys: list[Projection], init: InitSpec) -> None:
    """Raise where queries cannot be drawn like keys: no keys of their shape, or heads too wide to differ from them."""
    keys: dict[Place, Projection] = {(p.site, p.layer): p for p in queries_and_keys if p.role == "k"}
    for query in queries_and_keys:
        if query.role == "k":
            continue
        num_heads, head_size, input_size = query.shape
        key = keys.get((query.site, query.layer))
        if key is None or key.shape[1:] != (head_size, input_size) or num_heads % key.num_heads:
            raise BadShape(
                f"init.correlation={init.correlation} was asked for, but {query.name} of shape {query.shape} has "
                f"{'no keys' if key is None else f'keys of shape {key.shape}'} to be like. Use 0 on this model."
            )
        if init.shape == "orthogonal" and abs(init.correlation) < 1 and 2 * head_size > input_size:
            raise BadShape(
                f"init.correlation={init.correlation} needs {head_size} orthonormal rows beside those of the keys, and "
                f"{query.name} has an input of size {input_size}. Use heads of size {input_size // 2} or less, or "
                "init.shape='normal'."
            )
