"""A small sampler in vLLM's layout, written for difftest's demonstration. It shares no text with vLLM."""

__version__ = "0.0.0+demo"
