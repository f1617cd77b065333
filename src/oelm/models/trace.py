"""The matrix products of one training step, counted as they run, on tensors without values.

A step is carried out on the meta device, where every operation knows the shapes of what it would compute and computes
nothing. So the count is of what this model's own code does: a product that a frozen weight saves is not there, one
that a fused tensor still computes is. An autograd node carries the number of the forward operation that made it,
which is how a product of the backward pass is traced to its part.
"""

# ruff: noqa: SLF001  (torch offers the identity of a storage and of a running node under these names only)
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from oelm.method.rates import layer_prefixes
from oelm.method.repair import Fold
from oelm.models.families import architecture_of

ATTENTION, REPAIR, BEFORE, BEHIND = "attention", "repair", "embedding", "head"
"""Parts beside the roles: products of a layer outside its projections, those inside its repairs, products before and
behind the layers."""


@dataclass
class Trace:
    """FLOPs of one step by part, and the bytes that the forward pass keeps for the backward pass."""

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    kept_bytes: int = 0


def trace_step(model: nn.Module, inputs: dict[str, Tensor]) -> Trace:
    """Count a forward and a backward pass over meta `inputs`; the model itself is neither moved nor changed."""
    tensors = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for named in (model.named_parameters(), model.named_buffers())
        for name, tensor in named
    }
    parts = _Parts(model, tensors)
    trace = Trace()
    kept = _Kept(tensors, always_fused=next(model.parameters()).is_cuda)
    with parts.followed(model), _Count(parts, trace.forward), kept, kept.hooks():
        output = torch.func.functional_call(model, tensors, kwargs=inputs)
    logits = next(iter(output.values())) if isinstance(output, dict) else output
    with _Count(parts, trace.backward):
        logits.backward(torch.empty_like(logits))
    trace.kept_bytes = kept.total
    return trace


class _Parts:
    """Which part a product belongs to: inside a repair to it, else by the weight it reads, else by what runs."""

    def __init__(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        projections = architecture_of(model).projections(model)
        roles: dict[str, dict[str, None]] = {}
        for projection in projections:
            roles.setdefault(projection.module_name, {})[projection.role] = None
        # A product with a fused tensor that is not split is one product: it belongs to all of its roles.
        self._modules = {name: "+".join(found) for name, found in roles.items()}
        self._modules |= dict.fromkeys(layer_prefixes(projections), ATTENTION)
        self._folds = [module for module in model.modules() if isinstance(module, Fold)]
        self._modules |= {name: REPAIR for name, module in model.named_modules() if isinstance(module, Fold)}
        weights = {id(p): name for name, p in model.named_parameters()}
        self._by_storage = {
            tensors[weights[id(each.weight)]].untyped_storage()._cdata: (
                each.role if each.separate else self._modules[each.module_name]
            )
            for each in projections
        }
        for fold in self._folds:
            for parameter in fold.parameters():
                self._by_storage[tensors[weights[id(parameter)]].untyped_storage()._cdata] = REPAIR
        self._running = [BEFORE]
        self._by_node: dict[int, str] = {}

    @contextmanager
    def followed(self, model: nn.Module) -> Iterator[None]:
        """Follow which layer or projection runs while the model does."""
        hooks = []
        for name, part in self._modules.items():
            module = model.get_submodule(name)
            hooks.append(module.register_forward_pre_hook(lambda *_, part=part: self._running.append(part)))
            hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        hooks += [fold.register_forward_hook(self._stands_for) for fold in self._folds]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _leave(self) -> None:
        self._running.pop()
        if len(self._running) == 1:
            self._running = [BEHIND]

    def _stands_for(self, _: nn.Module, weights: tuple[Tensor, ...], folded: Tensor) -> None:
        """Count the products with what has been folded into a weight as those with the weight."""
        part = self._by_storage[weights[0].untyped_storage()._cdata]
        self._by_storage[folded.untyped_storage()._cdata] = part

    def of(self, operands: list[Tensor]) -> str:
        """Return the part of the product that is about to run."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return self._by_node.get(node._sequence_nr(), BEHIND)
        known = (self._by_storage.get(operand.untyped_storage()._cdata) for operand in operands)
        part = self._running[-1]
        part = part if part == REPAIR else next((part for part in known if part), part)
        # The node of this operation has the number before the next one. Without a gradient there is none, and the
        # number is that of an earlier operation, which keeps it.
        self._by_node.setdefault(torch.autograd._get_sequence_nr() - 1, part)
        return part


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Add the FLOPs of every matrix product to the counter of its part."""

    def __init__(self, parts: _Parts, counter: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts, self.counter = parts, counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if torch knows it as a product."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            # Code that reads a value asks whether a batch is free of padding. It is, and shapes do not depend on it.
            return True
        if func._overloadpacket not in flop_registry:
            return func(*args, **(kwargs or {}))
        part = self.parts.of([arg for arg in args if isinstance(arg, Tensor)])
        out = func(*args, **(kwargs or {}))
        self.counter[part] += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


class _Kept(TorchFunctionMode):
    """The bytes of activations that autograd keeps, each storage once.

    On the meta device attention takes the path that keeps every weight of the T x T square. Where the real one is
    fused it keeps its inputs and its output instead: always on CUDA, on a CPU only without dropout and without a mask
    that learns, which a bias over distances is.
    """

    def __init__(self, tensors: dict[str, Tensor], *, always_fused: bool) -> None:
        super().__init__()
        self.always_fused = always_fused
        self.total = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in tensors.values()}
        self._alive: list[Tensor] = []
        self._inside = False

    def hooks(self) -> Any:
        """Return the context in which what is kept is seen."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not self._inside and storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self._alive.append(tensor.detach())  # so that no later storage takes the place of this one
            self.total += storage.nbytes()
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let everything pass; look away inside attention that will be fused."""
        options = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **options)
        named = dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)) | options
        mask = named.get("attn_mask")
        learns = mask is not None and mask.requires_grad
        if (named.get("dropout_p") or learns) and not self.always_fused:
            return func(*args, **options)
        self._inside = True
        out = func(*args, **options)
        self._inside = False
        for tensor in (named["query"], named["key"], named["value"], *((mask,) if learns else ()), out):
            self._pack(tensor)
        return out
