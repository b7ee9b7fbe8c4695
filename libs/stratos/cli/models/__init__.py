"""Base models from the command line: in the object store, as records, and as workers of ``stratos up``.

Read in this order: ``model_store`` (whole folders, for pods), ``publishing`` and ``references`` (the registry),
``records`` (add a model to a running platform),
``rollouts`` (let its requests go over to a revision), ``choices`` (rules of the model ``auto``),
``declared`` (the same by jobs of an installation), ``pools`` (workers follow the records), ``workers``
(those of ``stratos up``).
"""
