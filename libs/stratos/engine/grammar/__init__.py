"""Structured output: grammar compilers and the token masks that Runner.sample takes will live here."""
