"""Text in and out: tokenizer, chat template, incremental detokeniser, stop strings. Never imports torch.

Read in this order: ``tokenizer``, ``chat``, ``detokenizer``, ``stop``.
"""
