"""Training on a mixture: the only package that uses the Trainer of sentence-transformers."""

import signal

# Signals of terminals, schedulers and CPU limits, which end training after the current step with a checkpoint.
STOP_SIGNALS = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGXCPU") if hasattr(signal, name)
)
