"""Recording good traces, and a look at the CPUs without any.

``check`` watches the kernel's own counters for some seconds and says whether CPUs are short. ``record`` runs
the tracers that this machine permits and writes a folder that ``tracelib report`` reads.
"""
