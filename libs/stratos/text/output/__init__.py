"""An output's text as events: plain text, reasoning, tool calls. Functions of the text, however it is cut.

Read in this order: ``events``, ``reader`` (text in pieces, and what waits for more of it), ``json_text``, ``notation``
(arguments that must obey, as rules), ``syntax`` (the contract of a family's calls), ``json_call``, ``tagged_values``,
``syntaxes`` (one file each), ``parser``, ``chat_format`` (the table), ``answer_grammar``, ``plain_grammar``,
``framed_grammar``, ``call_grammar`` (answers that must obey), ``schema_check`` (whether they do).
"""
