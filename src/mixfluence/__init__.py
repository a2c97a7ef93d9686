"""Choose, while training, which dataset the next batch comes from."""

import lazy_loader

__version__ = "0.2.0.dev0"

# The public names are in __init__.pyi. They are imported on first use: the command line must start without torch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
