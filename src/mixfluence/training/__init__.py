"""Training on a mixture: the only package that uses the Trainer of sentence-transformers."""
