"""Recurrent states of sequences, where a model has some: slots, and which sequence or hash has which.

Read in this order: ``slot_pool``, ``sequence_states``.
"""
