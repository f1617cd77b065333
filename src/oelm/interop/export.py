"""Our GPT as a plain Hugging Face GPT-2 directory, on which everything made for GPT-2 works."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from oelm.errors import NotCarriedOut, UsageError
from oelm.models.gpt import GPT, Block

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


def as_gpt2(model: GPT) -> GPT2LMHeadModel:
    """Build transformers' GPT-2 with the same function: equal logits, whatever the method was.

    Raises:
        NotCarriedOut: the model does something that GPT-2 cannot, e.g. RoPE or a repair of the logits.

    """
    from transformers import GPT2Config, GPT2LMHeadModel

    _refuse_other_than_gpt2(model)
    spec = model.spec
    config = GPT2Config(
        vocab_size=cast("int", spec.vocab_size),
        n_positions=spec.context,
        n_embd=spec.model_dim,
        n_layer=spec.num_layers,
        n_head=spec.num_heads,
        n_inner=spec.hidden_dim,
        activation_function="gelu",
        resid_pdrop=spec.dropout,
        embd_pdrop=spec.dropout,
        attn_pdrop=spec.dropout,
        bos_token_id=None,  # GPT-2's own is an id that other vocabularies do not have
        eos_token_id=None,
    )
    theirs: GPT2LMHeadModel = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    theirs.load_state_dict(_gpt2_tensors(model), strict=False)  # lm_head is tied to wte
    theirs.tie_weights()
    theirs.eval()  # type: ignore[no-untyped-call]
    return theirs


def export(model: GPT, directory: Path, tokenizer_directory: Path | None = None) -> None:
    """Write `model` as a plain GPT-2 directory, with its tokenizer where that is known."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty, and nothing is overwritten. Give a new folder.")
    gpt2 = as_gpt2(model)
    gpt2.save_pretrained(directory)
    if tokenizer_directory is not None:
        end = _save_tokenizer(tokenizer_directory, directory)
        for config in (gpt2.config, gpt2.generation_config):  # so that generate() stops where a text ends
            config.bos_token_id = config.eos_token_id = end
            config.save_pretrained(directory)


def _refuse_other_than_gpt2(model: GPT) -> None:
    spec = model.spec
    attention = cast("Block", model.blocks[0]).attention
    repairs = ("qk_norm", "key_shift", "key_mix", "position_bias", "position_features")
    reasons = {
        f"positions={spec.positions!r}": spec.positions != "learned",
        f"norm={spec.norm!r}": spec.norm != "layer",
        f"num_key_heads={spec.num_key_heads}": spec.key_heads != spec.num_heads,
        f"qk_head_size={spec.qk_head_size}": spec.qk_size != spec.head_size,
    } | {f"the repair {name!r}": getattr(attention, name) is not None for name in repairs}
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        raise NotCarriedOut(
            f"this model has {_listed(found)}, which GPT-2 does not have, so it cannot be written as one. Keep it in "
            "oelm's own checkpoint, which oelm generate and oelm evaluate read."
        )


def _listed(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _gpt2_tensors(model: GPT) -> dict[str, torch.Tensor]:
    """Translate names and layouts: GPT-2 fuses q, k, v and stores weights transposed."""
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors = {
        "transformer.wte.weight": own["token_embedding.weight"],
        "transformer.wpe.weight": own["position_embedding.weight"],
        "transformer.ln_f.weight": own["norm.weight"],
        "transformer.ln_f.bias": own["norm.bias"],
    }
    for layer, module in enumerate(model.blocks):
        block, theirs = cast("Block", module), f"transformer.h.{layer}"
        attention = block.attention
        q, k = _logits(block)
        tensors |= {
            f"{theirs}.attn.c_attn.weight": torch.cat((q, k, attention.v.weight.detach())).T.contiguous(),
            f"{theirs}.attn.c_attn.bias": torch.cat((_query_bias(block), torch.zeros(2 * model.spec.model_dim))),
            f"{theirs}.attn.c_proj.weight": attention.o.weight.detach().T.contiguous(),
            f"{theirs}.attn.c_proj.bias": torch.zeros(model.spec.model_dim),
        }
        for their_name, our_name in (("c_fc", "up"), ("c_proj", "down")):
            tensors[f"{theirs}.mlp.{their_name}.weight"] = own[f"blocks.{layer}.ffn.{our_name}.weight"].T.contiguous()
            tensors[f"{theirs}.mlp.{their_name}.bias"] = own[f"blocks.{layer}.ffn.{our_name}.bias"]
        for their_name, our_name in (("ln_1", "attention_norm"), ("ln_2", "ffn_norm")):
            for kind in ("weight", "bias"):
                tensors[f"{theirs}.{their_name}.{kind}"] = own[f"blocks.{layer}.{our_name}.{kind}"]
    return tensors


def _logits(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """Return Q and K weights that give the block's logits: zeros where they are absent, linear repairs folded in."""
    attention = block.attention
    if attention.q is None or attention.k is None:
        zeros = torch.zeros_like(attention.o.weight)
        return zeros, zeros
    q, k = (
        weight.detach() if fold is None else fold(weight).detach()
        for weight, fold in ((attention.q.weight, attention.query_fold), (attention.k.weight, attention.key_fold))
    )
    if attention.temperature is not None:
        factor_H = attention.temperature.log_factor_H.detach().exp()
        q = (q.view(factor_H.shape[0], -1, q.shape[1]) * factor_H[:, None, None]).view_as(q)
    return q, k


def _query_bias(block: Block) -> torch.Tensor:
    """Return the bias of the queries, scaled as the queries are by a temperature."""
    attention = block.attention
    if attention.query_bias is None:
        return torch.zeros(attention.o.in_features)
    bias_HK = attention.query_bias.bias_HK.detach()
    if attention.temperature is not None:
        bias_HK = bias_HK * attention.temperature.log_factor_H.detach().exp()[:, None]
    return bias_HK.flatten()


def _save_tokenizer(source: Path, directory: Path) -> int:
    """Write the tokenizer so that AutoTokenizer finds it; return the id of the end of a text."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    from oelm.data.tokenizer import load_tokenizer
    from oelm.spec.data import END_OF_TEXT

    load_tokenizer(source).save(directory)
    if (directory / "tokenizer.json").exists():
        fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(directory / "tokenizer.json"), eos_token=END_OF_TEXT
        )
    else:
        fast = AutoTokenizer.from_pretrained(directory)  # vocab.json and merges.txt beside a GPT-2 config
    fast.save_pretrained(directory)
    return int(fast.eos_token_id)
