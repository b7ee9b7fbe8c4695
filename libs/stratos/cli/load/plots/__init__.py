"""Plots of runs as SVG in one HTML page that needs no network.

Read in this order: ``scale`` (values to pixels), ``chart`` (axes, lines, dots), ``charts`` (those of runs), ``page``.
"""
