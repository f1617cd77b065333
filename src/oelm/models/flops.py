"""The cost of a training step from shapes alone: FLOPs by part, bytes of weights, moments and activations.

A product of an m x n and an n x p matrix counts as 2 m n p. A linear map costs one product forward and two backward:
one for the gradient of its input, and one for the gradient of its weight, which a frozen weight saves. Attention counts
the full T x T square, as implementations without causal skipping compute it. Norms, softmax, other elementwise
operations and the optimiser are not counted: their work is of lower order.

The step runs on the meta device, where every operation knows the shapes of its result and computes nothing. So the
count is of what the code of this model does: a product that a frozen weight saves is not counted, and one that a fused
tensor still computes is. Each autograd node has the number of the forward operation that created it, which links a
product of the backward pass to its part.
"""

# ruff: noqa: SLF001  (torch offers the identity of a storage and of a running node under these names only)

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from oelm.errors import NotCarriedOut
from oelm.method.freeze import layer_prefixes
from oelm.method.repair import FoldedRepair
from oelm.models.families import architecture_of
from oelm.models.gpt import GPT
from oelm.models.repaired_attention import plain_config

ATTENTION, REPAIR, BEFORE, BEHIND = "attention", "repair", "embedding", "head"
"""Parts in addition to the roles: products of a layer outside of its projections, products inside its repairs, and
products before and after the layers."""


@dataclass
class Trace:
    """FLOPs of one step by part, and the bytes that the forward pass keeps for the backward pass."""

    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    kept_bytes: int = 0


def _trace_step(model: nn.Module, inputs: dict[str, Tensor]) -> Trace:
    """Count a forward and a backward pass over meta `inputs`; the model is neither moved nor changed."""
    tensors = {
        name: torch.empty_like(tensor, device="meta").requires_grad_(tensor.requires_grad)
        for named in (model.named_parameters(), model.named_buffers())
        for name, tensor in named
    }
    parts = _Parts(model, tensors)
    trace = Trace()
    kept = _Kept(tensors, always_fused=next(model.parameters()).is_cuda)
    with parts.follow(model), _Count(parts, trace.forward), kept, kept.hooks():
        output = torch.func.functional_call(model, tensors, kwargs=inputs)
    logits = next(iter(output.values())) if isinstance(output, dict) else output
    with _Count(parts, trace.backward):
        logits.backward(torch.empty_like(logits))
    trace.kept_bytes = kept.total
    return trace


class _Parts:
    """Find the part of a product: a repair if it runs, otherwise by the weight it reads, otherwise by what runs."""

    def __init__(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        projections = architecture_of(model).projections(model)
        roles: dict[str, dict[str, None]] = {}
        for projection in projections:
            roles.setdefault(projection.module_name, {})[projection.role] = None
        # A product with a fused tensor that is not split belongs to all of its roles.
        self._modules = {name: "+".join(found) for name, found in roles.items()}
        self._modules |= dict.fromkeys(layer_prefixes(projections), ATTENTION)
        self._folds = [module for module in model.modules() if isinstance(module, FoldedRepair)]
        self._modules |= {name: REPAIR for name, module in model.named_modules() if isinstance(module, FoldedRepair)}
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
    def follow(self, model: nn.Module) -> Iterator[None]:
        """Follow which layer or projection runs while the model does."""
        hooks = []
        for name, part in self._modules.items():
            module = model.get_submodule(name)
            hooks.append(module.register_forward_pre_hook(lambda *_, part=part: self._running.append(part)))
            hooks.append(module.register_forward_hook(lambda *_: self._leave()))
        hooks += [fold.register_forward_hook(self._count_as_weight) for fold in self._folds]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _leave(self) -> None:
        self._running.pop()
        if len(self._running) == 1:
            self._running = [BEHIND]

    def _count_as_weight(self, _: nn.Module, weights: tuple[Tensor, ...], folded: Tensor) -> None:
        """Count products with a weight that repairs have been folded into as products with the weight."""
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
        # The node of this operation has the number before the next one. Without a gradient there is no node, and the
        # number belongs to an earlier operation, which keeps it.
        self._by_node.setdefault(torch.autograd._get_sequence_nr() - 1, part)
        return part


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Add the FLOPs of every matrix product to the counter of its part."""

    def __init__(self, parts: _Parts, counter: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parts, self.counter = parts, counter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it is a product."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            # Model code reads a value only to ask if a batch has no padding. Shapes do not depend on the answer.
            return True
        if func._overloadpacket not in flop_registry:
            return func(*args, **(kwargs or {}))
        part = self.parts.of([arg for arg in args if isinstance(arg, Tensor)])
        out = func(*args, **(kwargs or {}))
        self.counter[part] += flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


class _Kept(TorchFunctionMode):
    """The bytes of activations that autograd keeps, each storage once.

    On the meta device, attention keeps every weight of the T x T square. The fused implementation keeps only its
    inputs and its output. It is used always on CUDA, and on a CPU without dropout and without a trained mask (a bias
    over distances).
    """

    def __init__(self, tensors: dict[str, Tensor], *, always_fused: bool) -> None:
        super().__init__()
        self.always_fused = always_fused
        self.total = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in tensors.values()}
        self._alive: list[Tensor] = []
        self._inside = False

    def hooks(self) -> Any:
        """Return the context in which kept tensors are counted."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not self._inside and storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self._alive.append(tensor.detach())  # so that no later storage gets the same identity
            self.total += storage.nbytes()
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function; count only inputs and output of attention that will be fused."""
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


ADAM_MOMENTS = 2


@dataclass(frozen=True)
class Cost:
    """FLOPs of one step by part, the FLOPs that the method removed, and bytes."""

    forward_flops: dict[str, int]
    backward_flops: dict[str, int]
    removed_flops: int
    """Compared with the same model without a method; negative if repairs add more products."""
    weight_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    """Estimated bytes that the forward pass keeps for the backward pass, without scratch space and the loss."""

    @property
    def total_flops(self) -> int:
        """FLOPs of a whole step."""
        return sum(self.forward_flops.values()) + sum(self.backward_flops.values())

    @property
    def flop_share(self) -> float:
        """Fraction of a step's FLOPs that the method removes."""
        return self.removed_flops / (self.total_flops + self.removed_flops)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of all trained parameters."""
        return self.optimizer_bytes // ADAM_MOMENTS

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint: every weight, and the moments of the trained ones."""
        return self.weight_bytes + self.optimizer_bytes

    @property
    def memory_bytes(self) -> int:
        """Estimated peak memory of a step: weights, gradients, moments, activations."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes


def training_cost(model: nn.Module, batch_size: int, length: int, written: int | None = None) -> Cost:
    """Count one step on `batch_size` sequences of `length` tokens (or images).

    `written` is the number of tokens that an encoder-decoder writes; by default as many as it reads.

    Raises:
        BadShape: our GPT has a shorter context.
        NotCarriedOut: the model is neither our GPT nor from `transformers`, or does not accept such a batch.

    """
    inputs = _inputs(model, batch_size, length, written or length)
    now, whole = (_trace(each, inputs) for each in (model, _as_built(model)))
    before, after = (sum(each.forward.values()) + sum(each.backward.values()) for each in (whole, now))
    sizes = [
        (parameter.numel() * parameter.element_size(), parameter.requires_grad) for parameter in model.parameters()
    ]
    return Cost(
        forward_flops=dict(now.forward),
        backward_flops=dict(now.backward),
        removed_flops=before - after,
        weight_bytes=sum(size for size, _ in sizes),
        optimizer_bytes=ADAM_MOMENTS * sum(size for size, trains in sizes if trains),
        activation_bytes=now.kept_bytes,
    )


def _as_built(model: nn.Module) -> nn.Module:
    """Return the same model without a method, on the meta device."""
    if isinstance(model, GPT):
        return GPT(model.spec, device="meta")
    with torch.device("meta"):
        return type(model)(plain_config(copy.deepcopy(cast("Any", model).config)))


def _trace(model: nn.Module, inputs: dict[str, Tensor]) -> Trace:
    try:
        with _some_padding(model):
            return _trace_step(model, inputs)
    except (RuntimeError, ValueError, IndexError) as error:  # raised by model code for shapes that it does not accept
        shape = " x ".join(map(str, next(iter(inputs.values())).shape))
        raise NotCarriedOut(
            f"The cost of a step on {shape} cannot be counted: this {type(model).__name__} does not "
            f"take such a batch, or reads values of tensors ({str(error).splitlines()[0]}). Try a length within its "
            "positions, or the model with its original head."
        ) from error


@contextmanager
def _some_padding(model: nn.Module) -> Iterator[None]:
    """Set a padding token if the model has none, because classifiers need one."""
    config: Any = getattr(model, "config", None)
    if config is None or getattr(config, "pad_token_id", 0) is not None:
        yield
        return
    config.pad_token_id = 0
    try:
        yield
    finally:
        config.pad_token_id = None


def _inputs(model: nn.Module, batch_size: int, length: int, written: int) -> dict[str, Tensor]:
    """Return a batch on the meta device, by the names of the model's arguments."""
    ids, answers, lengths = (
        torch.empty(shape, dtype=torch.long, device="meta")
        for shape in ((batch_size, length), (batch_size, written), (batch_size,))
    )
    if isinstance(model, GPT):
        # Without targets, because the loss computes its gradient already in the forward pass.
        return {"ids_BT": ids} | ({"lengths_B": lengths} if model.classifier is not None else {})
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "save_pretrained"):
        raise NotCarriedOut(
            f"The cost of a {type(model).__name__} cannot be counted, because its inputs are unknown. "
            "Costs are counted for our GPT and for models from transformers."
        )
    if getattr(model, "main_input_name", "") == "pixel_values":
        shape = (batch_size, config.num_channels, config.image_size, config.image_size)
        return {"pixel_values": torch.empty(shape, device="meta")}
    texts = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return texts | ({"decoder_input_ids": answers} if config.is_encoder_decoder else {})
