"""Findings to files: the notebook run, the page, the ticket."""
