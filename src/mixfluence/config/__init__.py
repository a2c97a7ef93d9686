"""What a recipe may say, and how it is read: sections, sources and the YAML file around them."""
