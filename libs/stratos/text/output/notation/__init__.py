"""Arguments of enforced calls in the families' own notations, as rules of a grammar.

Read in this order: ``lark`` (parts of every grammar), ``schemas`` (what a schema asks for, what cannot be enforced),
``texts`` (texts without quotes), ``objects`` (properties one after the other), ``arguments`` (the contract, and JSON),
``keywords`` (Python's keyword arguments), ``tagged`` (values between tags), ``bare_keys`` (Gemma's objects).
"""
