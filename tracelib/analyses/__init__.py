"""Analyses: frames in, frames out; one question, one file, one public function."""
