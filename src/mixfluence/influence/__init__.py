"""Measure what each dataset is worth to the dev sets: by short training trials, or by gradient alignment.

Names are imported when they are first used: recipes read the settings of probes without loading torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
