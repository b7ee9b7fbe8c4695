"""Float checkpoints rounded to few bits by the help of text: what ``stratos quantize`` runs.

The command line starts it in a process of its own (``python -m stratos.quantise``), since it needs torch.  One layer is
in memory at a time, with the hidden states of the text; a layer that is written is a file, so a run that broke goes on
behind the last one.

Read in this order: ``schemes`` (what there is, and how a checkpoint states it), ``grid`` (rounding to the numbers of
a scheme), ``statistics`` (of a product's inputs), ``gptq``, ``channels`` (scales of inputs: AWQ and SmoothQuant),
``layer`` (one decoder layer, run and observed), ``rounding`` (one layer, rounded), ``shard`` (a layer as a file, and
read back), ``asking`` (what is asked, and what is refused), ``held_back`` (text that says how good the result is),
``run``.
"""
