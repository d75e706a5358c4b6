"""The command: `tracelib`, and `python -m tracelib`."""

import signal
import sys


def main() -> int:
    """Run the command line and return the exit status."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # While modules load there is nothing to clear away: Ctrl-C ends the process without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tracelib.cli import main as run  # noqa: PLC0415

    try:
        signal.signal(signal.SIGINT, handler)
        return run()
    except KeyboardInterrupt:  # before a command began, or when it was done
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
