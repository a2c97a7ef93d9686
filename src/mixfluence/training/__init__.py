"""The only room that knows the host's trainer: sampler, batches, trace and `MixtureTrainer`."""
