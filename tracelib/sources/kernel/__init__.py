"""What the Linux kernel's events say, whichever tool wrote them: for the readers of perf and ftrace texts.

A reader finds lines and their fields. What these mean is decided here: `sched` (switches, wake-ups, and the
threads that they name), `syscalls`; `texts` reads files in pieces of whole lines and looks at each distinct
text once.
"""
