"""Published claims, recomputed from their own inputs and measured on this machine: the rows of ``stratos reproduce``.

A row is a module with ``measure(conditions) -> RowResult``, found by its field name in the catalogue.  Each runs in a
process of its own (``python -m stratos.reproduce ROW``), so that one row's memory and threads are not another's; the
command line starts them, keeps their documents and renders the report.  Rows may import torch, the rest does not.

Read in this order: ``record`` (claims, verdicts, results, documents), ``catalogue`` (names of all rows), ``machine``
(where figures were measured), ``gpu_checks`` (and on which GPU), ``material`` (models that rows make), ``load`` (what
rows ask of engines), ``rows``, ``measuring`` (one row to its document).
"""
