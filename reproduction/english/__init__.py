"""Samplers on thirteen English domains: the study, the choice of settings and the table."""
