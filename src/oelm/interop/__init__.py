"""Doors to other tools: pretrained models, their Trainer, their checkpoints."""
