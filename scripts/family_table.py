"""Write the tables of docs/architectures.md: the families from their rows, and what became of every model type tried.

python scripts/family_table.py            # write both tables; the second takes a minute
python scripts/family_table.py --check    # say whether they are current
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "architectures.md"
_SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_TEXT = {**_SIZES, "max_position_embeddings": 64}
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GPT = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
_PAIR = {"vocab_size": 61, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}  # fmt: skip
_IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
          "image_size": 16, "patch_size": 4}  # fmt: skip
_CONV = {"conv_dim": (16, 16), "conv_kernel": (4, 3), "conv_stride": (4, 2), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip
_LLAMA_NAMES = {"q": "q_proj", "k": "k_proj"}
_BERT_NAMES = {"q": "query", "k": "key"}

# model class, fields of its configuration, and names if it has no row
TRIED: tuple[tuple[str, dict[str, Any], dict[str, str]], ...] = (
    ("BertModel", _TEXT, {}),
    ("RobertaModel", _TEXT, {}),
    ("XLMRobertaModel", _TEXT, {}),
    ("CamembertModel", _TEXT, {}),
    ("ElectraModel", _TEXT, {}),
    ("DistilBertModel", {"vocab_size": 61, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}, {}),
    ("DebertaV2Model", _TEXT, {}),
    ("MPNetModel", _TEXT, {}),
    ("AlbertModel", {**_TEXT, "embedding_size": 32}, {}),
    ("ModernBertModel", {**_TEXT, **_TOKENS}, {}),
    ("GPT2Model", _GPT, {}),
    ("GPTNeoModel", {**_TEXT, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]}, {}),
    ("GPTJModel", {**_GPT, "rotary_dim": 4}, {}),
    ("GPTNeoXModel", _TEXT, {}),
    ("OPTModel", {**_TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}, {}),
    ("BloomModel", {"vocab_size": 61, "hidden_size": 32, "n_layer": 2, "n_head": 4}, {}),
    ("FalconModel", _SIZES, {}),
    ("MptModel", {"vocab_size": 61, "d_model": 32, "n_layers": 2, "n_heads": 4}, {}),
    ("LlamaModel", _TEXT, {}),
    ("MistralModel", {**_TEXT, "num_key_value_heads": 2}, {}),
    ("MixtralModel", {**_TEXT, "num_key_value_heads": 2, "num_local_experts": 2}, {}),
    ("Qwen2Model", {**_TEXT, "num_key_value_heads": 2}, {}),
    ("Qwen3Model", {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}, {}),
    ("GemmaModel", {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}, {}),
    ("Gemma2Model", {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}, {}),
    ("Gemma3TextModel", {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}, {}),
    ("PhiModel", _TEXT, {}),
    ("Phi3Model", {**_TEXT, **_TOKENS, "num_key_value_heads": 2}, {}),
    ("Olmo2Model", _TEXT, {}),
    ("SmolLM3Model", {**_TEXT, **_TOKENS}, {}),
    ("GraniteModel", _TEXT, {}),
    ("StableLmModel", {**_TEXT, "num_key_value_heads": 2}, {}),
    ("T5Model", {"vocab_size": 61, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}, {}),
    ("BartModel", _PAIR, {}),
    ("MBartModel", _PAIR, {}),
    ("WhisperModel", {**_PAIR, **_TOKENS, "num_mel_bins": 6, "max_source_positions": 12}, {}),
    ("ViTModel", _IMAGE, {}),
    ("DeiTModel", _IMAGE, {}),
    ("CLIPVisionModel", _IMAGE, {}),
    ("SiglipVisionModel", _IMAGE, {}),
    ("Wav2Vec2Model", {**_SIZES, **_CONV}, {}),
    ("HubertModel", {**_SIZES, **_CONV}, {}),
    ("Starcoder2Model", {**_TEXT, "num_key_value_heads": 2}, _LLAMA_NAMES),
    ("CohereModel", {**_TEXT, "num_key_value_heads": 2}, _LLAMA_NAMES),
    ("NemotronModel", {**_TEXT, "num_key_value_heads": 2}, _LLAMA_NAMES),
    ("OlmoModel", _TEXT, _LLAMA_NAMES),
    ("Qwen2MoeModel", {**_TEXT, "num_key_value_heads": 2, "num_experts": 2, "moe_intermediate_size": 16,
                       "shared_expert_intermediate_size": 16, "num_experts_per_tok": 1}, _LLAMA_NAMES),
    ("BioGptModel", _TEXT, _LLAMA_NAMES),
    ("XGLMModel", {"vocab_size": 61, "d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
     {**_LLAMA_NAMES, "heads": "4"}),
    ("PegasusModel", _PAIR, _LLAMA_NAMES),
    ("MarianModel", {**_PAIR, **_TOKENS}, _LLAMA_NAMES),
    ("ErnieModel", _TEXT, _BERT_NAMES),
    ("EsmModel", {**_TEXT, "pad_token_id": 1}, _BERT_NAMES),
    ("LayoutLMModel", _TEXT, _BERT_NAMES),
    ("RoFormerModel", {**_TEXT, "embedding_size": 32}, _BERT_NAMES),
    ("Dinov2Model", _IMAGE, _LLAMA_NAMES),
    ("OpenAIGPTModel", _GPT, {}),
    ("LongformerModel", {**_TEXT, "attention_window": 4}, {}),
    ("DeepseekV3Model", {**_TEXT, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
                         "qk_nope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 4, "first_k_dense_replace": 2},
     {}),
    ("FNetModel", {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}, {}),
    ("MambaModel", {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, {}),
    ("XLNetModel", {"vocab_size": 61, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, {}),
    ("SqueezeBertModel", {**_TEXT, "embedding_size": 32}, {}),
)  # fmt: skip


def family_table() -> str:
    """Return the families as a Markdown table."""
    from oelm.models.families import TorchAttention
    from oelm.models.families.huggingface import FAMILIES
    from oelm.spec.method import POSITION_REPAIRS

    lines = ["| family | models | where Q and K are | sites | repairs | by distance | `uniform` |", "|" + " --- |" * 7]
    for family in (*FAMILIES, TorchAttention()):
        cells = (
            f"`{family.name}`", family.models, family.where(), ", ".join(family.sites), _yes(bool(family.repairs)),
            _yes(bool(POSITION_REPAIRS & family.repairs)), _yes(family.can_remove_qk),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def tried_table() -> str:
    """Apply `oelm-freeze` to a tiny model of every type, and return a Markdown table of what happened."""
    rows = [try_model(*each) for each in TRIED]
    counts = Counter(how for _, how, _ in rows)
    by_row, named, refused = (counts[how] for how in ("row", "names", "refused"))
    summary = (
        f"Of {len(rows)} model types, {by_row} work by a row of the table, {named} by names, and {refused} are refused "
        "with a reason."
    )
    lines = [summary, "", "| model type | works by | how, or why not |", "|" + " --- |" * 3]
    return "\n".join([*lines, *(f"| `{kind}` | {how} | {what} |" for kind, how, what in rows)])


def try_model(class_name: str, fields: dict[str, Any], names: dict[str, Any]) -> tuple[str, str, str]:
    """Apply a method to a tiny model; return its type, how that went, and the family, names or reason."""
    import transformers

    import oelm

    cls = getattr(transformers, class_name)
    model = cls(cls.config_class(**fields))
    names = {role: int(name) if role == "heads" else name for role, name in names.items()}
    try:
        audit = oelm.apply(model, "oelm-freeze", **names)
    except oelm.OelmError as error:
        return model.config.model_type, "refused", str(error).partition(" models. ")[2] or str(error)
    oelm.verify_frozen(model)
    if not audit.frozen or audit.max_departure is None or audit.max_departure > 1e-6:
        raise AssertionError(f"{class_name}: nothing was frozen, or it is not orthogonal")
    how = ", ".join(f"{role}={name!r}" for role, name in names.items())
    return model.config.model_type, "names" if names else "row", f"`{how}`" if names else f"`{audit.architecture}`"


def replace(page: str, mark: str, table: str) -> str:
    """Return the page with the text between two comments replaced."""
    begin, end = f"<!-- {mark}: written by scripts/family_table.py -->", f"<!-- end of {mark} -->"
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return between.sub(lambda _: f"{begin}\n\n{table}\n\n{end}", page)


def main() -> int:
    """Write or check the tables."""
    page = PAGE.read_text()
    new = replace(replace(page, "families", family_table()), "tried", tried_table())
    if "--check" in sys.argv:
        print("current" if new == page else "not current: run python scripts/family_table.py")
        return int(new != page)
    PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
