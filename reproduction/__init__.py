"""The paper's studies: run them with `python -m reproduction`; README.md explains them."""
