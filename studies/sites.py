"""Where does an encoder-decoder need its attention to learn? OELM on one site at a time, on questions about stories.

    oelm run studies/sites.py                  tiny T5, on a CPU, no network
    oelm run studies/sites.py --scale bart     tiny BART

Each arm freezes head-wise orthogonal Q and K at some sites only: the encoder's self-attention, the decoder's, or the
cross-attention of the decoder to the encoder. The model reads the end of a story and a question, and writes the answer.
One learning rate and two seeds are a first look, not evidence. One run takes 2 minutes of a core. The T5 baseline then
answers 39 % (the most frequent answer is 13 %): it has learned which kind of answer a question needs and has hardly
begun to look it up. Train longer for a verdict on sites.
"""

from oelm import Arm, ExamplesSpec, HuggingFaceSpec, RunSpec, Study, TrainSpec, named_method

FROZEN = named_method("oelm-freeze")
SITES = ("encoder", "decoder", "cross")
ARMS = (
    "baseline",
    *(Arm(name=f"oelm-{site}", method=FROZEN.model_copy(update={"sites": (site,)})) for site in SITES),
    "oelm-freeze",
)


def small(name: str, model: str) -> Study:
    """Return the study of a named configuration."""
    return Study(
        name=name,
        question="At which attention sites may an encoder-decoder's queries and keys stay frozen?",
        base=RunSpec(
            model=HuggingFaceSpec(name=model, pretrained=False),
            data=ExamplesSpec(corpus="story-questions", vocab_size=512, answers="text"),
            train=TrainSpec(
                epochs=2, batch_size=32, learning_rate=3e-3, warmup_steps=50, eval_every="epoch", eval_tokens=16_384
            ),
        ),
        arms=ARMS,
        seeds=(0, 1),
    )


study = small("sites", "t5-tiny")
scales = {"bart": small("sites-bart", "bart-tiny")}
