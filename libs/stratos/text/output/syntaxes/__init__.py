"""Syntaxes of calls, one file each: their marks, and how what follows is read.

Read in this order: ``hermes``, ``phi``, ``mistral``, ``llama_json``, ``deepseek``, ``qwen_coder``, ``glm``, ``gemma``,
``pythonic``, ``harmony`` (which frames the whole output).
"""
