"""Text in and out: tokenizer, chat template, incremental detokeniser, stop strings. Never imports torch.

Read in this order: ``tokenizer``, ``encoding_threads``, ``template_environment``, ``chat_template``, ``token_bytes``,
``detokenizer``, ``stop``, ``grammar``, ``grammar_probe`` (the process that tries grammars), ``tenant_templates``,
``filtering`` (words and patterns), ``output`` (what an output's text says: reasoning, calls), ``gguf`` (tokenizer and
folder of a GGUF file).
"""
