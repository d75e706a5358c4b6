"""tracelib: why is a multi-GPU LLM server slow while its GPUs are not busy?"""

__version__ = "0.1.0"
