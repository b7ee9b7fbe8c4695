"""A runner whose tokens can be computed by hand and differ per worker. Never imports torch.

Read in this order: ``runner``, ``pooling`` (embeddings).
"""
