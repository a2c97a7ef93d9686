"""Scores become tables here."""
