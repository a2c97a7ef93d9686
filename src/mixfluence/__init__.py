"""Choose, while training, which dataset the next batch comes from."""
