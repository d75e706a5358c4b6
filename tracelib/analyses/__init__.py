"""Analyses: frames in, frames out; each question is one public function, each ledger or topic one file.

:mod:`tracelib.analyses.results` lists them and computes all of a run.
"""
