"""Our GPT as a model type of transformers, for what no other architecture can express.

`oelm.load(path)` and, after `oelm.register_auto_model()`, `AutoModelForCausalLM.from_pretrained(path)` load it. Without
oelm, transformers does not know the model type and refuses it, so it never loads as something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput, SequenceClassifierOutput

from oelm.errors import BadData, NotCarriedOut
from oelm.models import apply as surgery
from oelm.models.gpt import GPT
from oelm.spec.method import MethodSpec
from oelm.spec.run import GPTSpec
from oelm.train.checkpoint import load_into, model_tensors

WEIGHTS = "model.safetensors"
_HUB = ("revision", "cache_dir", "token", "local_files_only")
_WITHOUT_MEANING = (
    "attn_implementation",
    "trust_remote_code",
    "low_cpu_mem_usage",
    "adapter_kwargs",
    "use_safetensors",
)


class OelmGPTConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """The spec of a GPT, and the method applied to it, as config.json."""

    model_type = "oelm-gpt"
    gpt: dict[str, Any] | None = None
    """Fields of GPTSpec."""
    oelm: dict[str, Any] | None = None
    """The method, the seed of its draws, and the hashes of frozen tensors."""
    vocab_size: int = 0
    max_position_embeddings: int = 0
    num_hidden_layers: int = 0
    hidden_size: int = 0
    use_cache: bool = False
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


class _OelmGPT(PreTrainedModel):  # type: ignore[no-untyped-call]
    """What both heads share: the GPT, and exact saving and loading."""

    config_class = OelmGPTConfig
    base_model_prefix = "gpt"
    main_input_name = "input_ids"
    _oelm_wraps = "gpt"  # the child that has the method: see method/freeze.py

    def __init__(self, config: OelmGPTConfig, gpt: GPT | None = None) -> None:
        super().__init__(config)
        self.gpt = _build(config) if gpt is None else gpt
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: Any) -> None:
        """Leave all weights alone: the GPT has drawn them."""

    @classmethod
    def from_pretrained(cls, name: Any, *_: Any, **options: Any) -> Any:  # type: ignore[override]
        """Load the model; every tensor must be there, and frozen ones must be as they were saved."""
        config, dtype = options.pop("config", None), options.pop("dtype", options.pop("torch_dtype", None))
        device = options.pop("device_map", None)
        folder = _folder(str(name), {key: options.pop(key) for key in _HUB if key in options})
        if unknown := options.keys() - {*_WITHOUT_MEANING}:
            raise NotCarriedOut(f"A GPT of oelm is loaded without the options {sorted(unknown)}. Leave them out.")
        config = config if isinstance(config, OelmGPTConfig) else OelmGPTConfig.from_pretrained(folder)
        model = cls(config)
        try:
            tensors = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise BadData(f"The weights in {folder} cannot be read ({error}). Export the run again.") from error
        load_into(model.gpt, tensors, str(folder))
        surgery.freeze_as_saved(model.gpt, (config.oelm or {}).get("hashes", {}))
        if isinstance(dtype, str) and dtype != "auto":
            dtype = getattr(torch, dtype)
        moved: dict[str, Any] = {"dtype": dtype} if isinstance(dtype, torch.dtype) else {}
        if isinstance(device, str) and device != "auto":
            moved["device"] = device
        return (model.to(**moved) if moved else model).eval()

    def save_pretrained(self, directory: Any, *_: Any, **__: Any) -> None:  # type: ignore[override]
        """Write config.json and the weights."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        config: Any = self.config
        config.oelm = _note(self.gpt)
        config.architectures = [type(self).__name__]
        config.save_pretrained(folder)
        save_file(model_tensors(self.gpt), folder / WEIGHTS, metadata={"format": "pt"})


class OelmGPTForCausalLM(_OelmGPT, GenerationMixin):  # type: ignore[no-untyped-call]
    """A GPT that predicts the next token. It generates without a key cache; `oelm generate` has one."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> CausalLMOutput:
        """Return the logits, and the mean loss if there are labels (-100 is left out)."""
        _refuse_left_padding(attention_mask)
        logits_BTV = self.gpt(input_ids)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutput(loss=cast("Any", loss), logits=logits_BTV)

    def prepare_inputs_for_generation(  # type: ignore[override]
        self, input_ids: Tensor, **given: Any
    ) -> dict[str, Any]:
        """Return all tokens so far."""
        return {"input_ids": input_ids, "attention_mask": given.get("attention_mask")}


class OelmGPTForSequenceClassification(_OelmGPT):  # type: ignore[no-untyped-call]
    """A GPT that reads the label of a text from its last token."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        """Return the logits of the labels, and the mean loss if there are labels."""
        _refuse_left_padding(attention_mask)
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        logits_BL = self.gpt(input_ids, lengths_B=mask_BT.sum(1))
        loss = None if labels is None else F.cross_entropy(logits_BL.float(), labels)
        return SequenceClassifierOutput(loss=cast("Any", loss), logits=logits_BL)


def wrap(gpt: GPT) -> OelmGPTForCausalLM | OelmGPTForSequenceClassification:
    """Return a GPT with its method as a model of transformers."""
    spec = gpt.spec
    config = OelmGPTConfig(
        gpt=spec.model_dump(mode="json"),
        oelm=_note(gpt),
        vocab_size=cast("int", spec.vocab_size),
        max_position_embeddings=spec.context,
        num_hidden_layers=spec.num_layers,
        hidden_size=spec.model_dim,
        bos_token_id=None,
        eos_token_id=None,
    )
    cls = OelmGPTForCausalLM if gpt.classifier is None else OelmGPTForSequenceClassification
    return cls(config, gpt)


def register_auto_model() -> None:
    """Let the Auto classes of transformers load exported models of oelm."""
    AutoConfig.register(OelmGPTConfig.model_type, OelmGPTConfig, exist_ok=True)
    AutoModelForCausalLM.register(OelmGPTConfig, OelmGPTForCausalLM, exist_ok=True)
    AutoModelForSequenceClassification.register(OelmGPTConfig, OelmGPTForSequenceClassification, exist_ok=True)


def _build(config: OelmGPTConfig) -> GPT:
    with torch.device("cpu"):
        gpt = GPT(GPTSpec.model_validate(config.gpt or {}))
        if note := config.oelm:
            surgery.apply(gpt, MethodSpec.model_validate(note["method"]), seed=note["seed"], scheduled=True)
    return gpt


def _note(gpt: GPT) -> dict[str, Any] | None:
    state = surgery.find_applied(gpt)
    if state is None:
        return None
    return {"method": state.method.model_dump(mode="json"), "seed": state.seed, "hashes": dict(state.hashes)}


def _folder(name: str, where: dict[str, Any]) -> Path:
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, **where))


def _refuse_left_padding(mask_BT: Tensor | None) -> None:
    if mask_BT is not None and mask_BT.ndim == 2 and bool((mask_BT[:, 1:] > mask_BT[:, :-1]).any()):
        raise NotCarriedOut(
            "Padding before the text would change the positions of this GPT. Pad on the right (padding_side='right'), "
            "or generate one text at a time."
        )
