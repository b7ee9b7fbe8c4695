"""Contents of the data directory of ``stratos up``, and files of other kinds that commands read and write.

Read in this order: ``folder`` (the directory and its runs), ``credentials``, ``platform_facts`` (what a running
platform tells the other commands), ``log_rotation``, ``model_check``, ``torch_module``
(files to and from a process with torch).
"""
