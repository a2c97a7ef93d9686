"""Files become datasets here: one module per format, the mixture of them and the token cache."""
