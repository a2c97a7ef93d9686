"""Comparison, report and status of run folders."""
