"""What the Linux kernel's events say, whichever tool wrote them: for the readers of perf and ftrace texts.

A reader finds lines and their fields. What these mean is decided here: `sched` (switches and wake-ups),
`syscalls`, `threads` (ids and names); `interning` looks at each distinct text once. `lines` reads
files in pieces of whole lines.
"""
