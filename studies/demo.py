"""The main job: what does freezing Q and K cost a small GPT, and which frozen arm stays within 5 % of perplexity?

    oelm run studies/demo.py        at most 4 minutes on 2 quiet cores, without GPU and network

The declaration is in the package (src/oelm/demo.py), so that `oelm demo` runs it without a clone.
"""

from oelm.demo import study

__all__ = ["study"]
