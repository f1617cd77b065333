"""The published study's own names, and what they are called here."""

METHODS = {"baseline": "baseline", "oelm_v2": "oelm-freeze", "oelm_random": "oelm-random"}
CORPORA = {"tinystories": "tinystories", "openwebtext": "openwebtext", "wikitext103": "wikitext-103"}
