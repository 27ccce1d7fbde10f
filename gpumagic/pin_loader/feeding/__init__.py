"""The prefetcher: batches on the device, each copied while the one before is used."""
