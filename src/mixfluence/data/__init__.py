"""Data formats, the mixture of training datasets, and the token cache."""
