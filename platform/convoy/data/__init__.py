"""From a corpus to batches: documents, tokenizers, token shards, the exact sampler. Never imports torch."""
