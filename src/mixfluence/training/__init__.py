"""Training on a mixture: the only package that uses the Trainer of sentence-transformers."""

import signal

# Signals that end training after the step, with a checkpoint: of terminals, of schedulers, of a limit on CPU time.
STOP_SIGNALS = frozenset(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGXCPU") if hasattr(signal, name)
)
