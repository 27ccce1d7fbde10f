"""What a batch consists of, how it is walked, moved and pinned."""
