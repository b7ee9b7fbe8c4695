"""Tokenizer and model folder of a GGUF file: what the other libraries read from files of Hugging Face's layout.

Read in this order: ``vocabulary``, ``byte_pairs``, ``sentence_pieces``, ``definition``, ``folder``,
``kept_folders`` (of files given to a command).
"""
