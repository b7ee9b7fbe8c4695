"""The load itself: which requests are sent, by whom, and when. Pure: a seed gives the same requests, byte for byte.

Each concern draws from a generator of its own, so the same requests come at any rate, and another length of answers
leaves the prompts as they are.

Read in this order: ``arrivals`` (when), ``lengths`` (how long), ``prompts`` (token ids), ``senders`` (who),
``sessions`` (all of them together).
"""
