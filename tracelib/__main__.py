"""`python -m tracelib`."""

import sys

from tracelib.cli import main

sys.exit(main())
