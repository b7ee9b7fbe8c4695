"""Products whose weights stay codes of 4 or 8 bits on a GPU: layouts, widening, kernels.

Whatever the number of rows, inputs are walked in steps of one size in one order.  Numbers of codes are exact in the
compute type (NF4's are rounded to it), and scales multiply float32 sums.  A program computes columns times rows, with
weights on the left: products of few rows then fill the hardware's 64 columns.

Read in this order: ``packing`` (layouts), ``widening`` (codes to numbers), ``products`` (weight-only),
``byte_products`` (W8A8, LLM.int8), ``experts``.
"""
