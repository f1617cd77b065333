"""Export our GPT as a Hugging Face model that computes the same logits.

Three architectures of transformers have our blocks exactly, so that every tool reads them without oelm: GPT-2 (learned
positions, LayerNorm), Starcoder2 (rotary positions, LayerNorm) and Arcee (rotary positions, RMSNorm); the last two are
Llama with a feed-forward layer that is not gated. What none of them has (position features or biases, key shift, key
mix, QK norm, thin Q and K, learned positions with RMSNorm or grouped keys) is exported as the model type `oelm-gpt`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from oelm.data.tokenizer import TextEncoder, Tokenizer
from oelm.errors import NotCarriedOut, UsageError
from oelm.models.gpt import GPT, Attention, Block
from oelm.spec.run import END_OF_TEXT

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, PreTrainedModel

_ONLY_OURS = ("qk_norm", "key_shift", "key_mix", "position_bias", "position_features")
"""Repairs that no weights of a plain Transformer can express."""
_SPECIAL = {
    "cls_token": ("[CLS]", "<s>"), "sep_token": ("[SEP]", "</s>"), "unk_token": ("[UNK]", "<unk>"),
    "mask_token": ("[MASK]", "<mask>"), "eos_token": ("</s>", END_OF_TEXT),
}  # fmt: skip


def as_hugging_face(model: GPT) -> PreTrainedModel:
    """Build the model of transformers that computes the same logits, of a plain architecture if there is one."""
    plain: dict[tuple[str, str], Callable[[GPT], PreTrainedModel]] = {
        ("learned", "layer"): as_gpt2,
        ("rope", "layer"): _as_starcoder2,
        ("rope", "rms"): _as_arcee,
    }
    make = plain.get((model.spec.positions, model.spec.norm))
    grouped = model.spec.key_heads != model.spec.num_heads and make is as_gpt2
    if make is None or grouped or model.classifier is not None or _list_own_parts(model):
        from oelm.interop.hugging_face_gpt import wrap

        return wrap(model)
    return make(model)


def as_gpt2(model: GPT) -> GPT2LMHeadModel:
    """Build the GPT-2 of transformers that computes the same logits.

    Raises:
        NotCarriedOut: the model has parts that GPT-2 does not have, for example RoPE or a repair of the logits.

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
        bos_token_id=None,  # other vocabularies do not have GPT-2's id
        eos_token_id=None,
    )
    theirs: GPT2LMHeadModel = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    theirs.load_state_dict(_gpt2_tensors(model), strict=False)  # lm_head is tied to wte
    theirs.tie_weights()
    theirs.eval()  # type: ignore[no-untyped-call]
    return theirs


def export(model: GPT, directory: Path, tokenizer: Tokenizer | None = None) -> PreTrainedModel:
    """Write a GPT for text as a Hugging Face folder, with its tokenizer if that is known; return the model."""
    refuse_full(directory)
    theirs = as_hugging_face(model)
    if tokenizer is not None:
        end = _save_tokenizer(tokenizer, directory, model.spec.context)
        theirs.config.bos_token_id = theirs.config.eos_token_id = end
        if theirs.generation_config is not None:  # so that generate() stops at the end of a text
            theirs.generation_config.bos_token_id = theirs.generation_config.eos_token_id = end
    theirs.save_pretrained(directory)
    if theirs.generation_config is not None:
        theirs.generation_config.save_pretrained(directory)
    return theirs


def refuse_full(directory: Path) -> None:
    """Refuse to write into a folder that has files."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty, and existing files are not overwritten. Give a new folder.")


def _list_own_parts(model: GPT) -> list[str]:
    """Return the parts of a GPT that no weights of a plain Transformer can express."""
    attention, spec = cast("Block", model.blocks[0]).attention, model.spec
    found = [f"the repair {name!r}" for name in _ONLY_OURS if getattr(attention, name) is not None]
    thin = [f"qk_head_size={spec.qk_head_size}"] if spec.qk_size != spec.head_size else []
    unrotated = ["heads without rotary positions"] if spec.positions == "rope" and attention.unrotated_key_heads else []
    return [*thin, *unrotated, *found]


def _refuse_other_than_gpt2(model: GPT) -> None:
    spec = model.spec
    reasons = {
        f"positions={spec.positions!r}": spec.positions != "learned",
        f"norm={spec.norm!r}": spec.norm != "layer",
        f"num_key_heads={spec.num_key_heads}": spec.key_heads != spec.num_heads,
    }
    found = [reason for reason, holds in reasons.items() if holds] + _list_own_parts(model)
    if found:
        raise NotCarriedOut(f"This model has {', '.join(found)}, which GPT-2 does not have. Use as_hugging_face.")


def _as_starcoder2(model: GPT) -> PreTrainedModel:
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    dropout = model.spec.dropout
    config = Starcoder2Config(
        **_llama_fields(model), norm_epsilon=1e-5, use_bias=True, tie_word_embeddings=True,
        residual_dropout=dropout, embedding_dropout=dropout,
    )  # fmt: skip
    names = {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
    return _fill(Starcoder2ForCausalLM(config), _llama_tensors(model, names))  # type: ignore[no-untyped-call]


def _as_arcee(model: GPT) -> PreTrainedModel:
    from transformers import ArceeConfig, ArceeForCausalLM

    fields: dict[str, Any] = {
        "rms_norm_eps": 1e-5,
        "mlp_bias": True,
        "attention_bias": True,
        "tie_word_embeddings": True,
    }
    config = ArceeConfig(**_llama_fields(model), **fields)
    names = {"ffn.up": "mlp.up_proj", "ffn.down": "mlp.down_proj"}
    return _fill(ArceeForCausalLM(config), _llama_tensors(model, names))  # type: ignore[no-untyped-call]


def _llama_fields(model: GPT) -> dict[str, Any]:
    spec = model.spec
    return {
        "vocab_size": spec.vocab_size, "hidden_size": spec.model_dim, "intermediate_size": spec.hidden_dim,
        "num_hidden_layers": spec.num_layers, "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.key_heads, "max_position_embeddings": spec.context, "hidden_act": "gelu",
        "attention_dropout": spec.dropout, "bos_token_id": None, "eos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip


def _llama_tensors(model: GPT, feed_forward: dict[str, str]) -> dict[str, torch.Tensor]:
    """Convert names; biases that our attention does not have are zero."""
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tensors = {
        "model.embed_tokens.weight": own["token_embedding.weight"],
        "lm_head.weight": own["token_embedding.weight"],
    }
    names = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", **feed_forward}
    for name, tensor in own.items():
        if name.startswith("norm."):
            tensors[f"model.{name}"] = tensor
        for ours, theirs in names.items():
            if f".{ours}." in name:
                layer, kind = name.split(".")[1], name.rpartition(".")[2]
                tensors[f"model.layers.{layer}.{theirs}.{kind}"] = tensor
    for number, module in enumerate(model.blocks):
        attention, theirs = cast("Block", module).attention, f"model.layers.{number}.self_attn"
        q, k = _logits(attention)
        weights = {"q": q, "k": k, "v": attention.v.weight.detach(), "o": attention.o.weight.detach()}
        for role, weight in weights.items():
            tensors[f"{theirs}.{role}_proj.weight"] = weight
            tensors[f"{theirs}.{role}_proj.bias"] = _query_bias(attention) if role == "q" else torch.zeros(len(weight))
    return tensors


def _fill(theirs: Any, tensors: dict[str, torch.Tensor]) -> PreTrainedModel:
    theirs.load_state_dict(tensors)  # strict: every tensor is there, and no other
    theirs.tie_weights()
    return theirs.eval()  # type: ignore[no-any-return]


def _gpt2_tensors(model: GPT) -> dict[str, torch.Tensor]:
    """Convert names and layouts: GPT-2 fuses q, k and v, and stores weights transposed."""
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
        q, k = _logits(attention)
        tensors |= {
            f"{theirs}.attn.c_attn.weight": torch.cat((q, k, attention.v.weight.detach())).T.contiguous(),
            f"{theirs}.attn.c_attn.bias": torch.cat((_query_bias(attention), torch.zeros(2 * model.spec.model_dim))),
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


def _logits(attention: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights of Q and K that give the logits of a block: zeros if absent, with linear repairs folded in."""
    if attention.q is None or attention.k is None:
        spec = attention.spec
        rows = (spec.num_heads * spec.head_size, spec.key_heads * spec.head_size)
        return torch.zeros(rows[0], spec.model_dim), torch.zeros(rows[1], spec.model_dim)
    q, k = (
        weight.detach() if fold is None else fold(weight).detach()
        for weight, fold in ((attention.q.weight, attention.query_fold), (attention.k.weight, attention.key_fold))
    )
    if attention.temperature is not None:
        factor_H = attention.temperature.log_factor_H.detach().exp()
        q = (q.view(factor_H.shape[0], -1, q.shape[1]) * factor_H[:, None, None]).view_as(q)
    return q, k


def _query_bias(attention: Attention) -> torch.Tensor:
    """Return the bias of the queries, scaled by the temperature like the queries."""
    if attention.query_bias is None:
        return torch.zeros(attention.o.in_features)
    bias_HK = attention.query_bias.bias_HK.detach()
    if attention.temperature is not None:
        bias_HK = bias_HK * attention.temperature.log_factor_H.detach().exp()[:, None]
    return bias_HK.flatten()


def _save_tokenizer(tokenizer: Tokenizer, directory: Path, context: int) -> int:
    """Write the tokenizer so that AutoTokenizer finds it; return the id of the end-of-text token."""
    from transformers import GPT2Tokenizer, PreTrainedTokenizerFast

    tokenizer.save(directory)
    if (directory / "tokenizer.json").exists():
        fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(directory / "tokenizer.json"), eos_token=END_OF_TEXT, model_max_length=context
        )
    else:
        fast = GPT2Tokenizer.from_pretrained(directory, model_max_length=context)
    fast.save_pretrained(directory)
    return int(fast.eos_token_id)


def export_labelled(
    model: Any, directory: Path, encoder: TextEncoder, labels: tuple[str, ...], max_length: int
) -> None:
    """Write a fine-tuned model, a Hugging Face one or our GPT, with its tokenizer; empty labels for answers as text."""
    refuse_full(directory)
    theirs = as_hugging_face(model) if isinstance(model, GPT) else model
    if theirs.config.pad_token_id is None:
        theirs.config.pad_token_id = encoder.pad
    if labels:
        theirs.config.id2label = dict(enumerate(labels))
        theirs.config.label2id = {name: number for number, name in enumerate(labels)}
    theirs.save_pretrained(directory)
    _save_encoder(encoder, directory, theirs, max_length)


def export_decoder(model: Any, directory: Path, tokenizer: Tokenizer | None) -> None:
    """Write a decoder of `transformers` that was trained on text, with the vocabulary of the text."""
    refuse_full(directory)
    model.save_pretrained(directory)
    if tokenizer is not None:
        tokenizer.save(directory)


def _save_encoder(encoder: TextEncoder, directory: Path, model: Any, max_length: int) -> None:
    from transformers import PreTrainedTokenizerFast

    (directory / "tokenizer.json").write_bytes(encoder.to_json())
    backend = encoder.tokenizer
    special = {
        name: next((word for word in words if backend.token_to_id(word) is not None), None)
        for name, words in _SPECIAL.items()
    }
    fast: Any = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(directory / "tokenizer.json"),
        model_max_length=max_length,
        model_input_names=["input_ids", *_kinds(model), "attention_mask"],
        **{name: word for name, word in special.items() if word is not None},
    )
    pad = backend.id_to_token(model.config.pad_token_id)
    # A classifier with a decoder pads with one entry more than the vocabulary that was trained on its texts.
    fast.add_special_tokens({"pad_token": pad or "<pad>"})
    fast.save_pretrained(directory)


def _kinds(model: Any) -> list[str]:
    """Return the name of the input that tells two texts apart, if the model has it."""
    return ["token_type_ids"] if getattr(model.config, "type_vocab_size", 0) > 1 else []
