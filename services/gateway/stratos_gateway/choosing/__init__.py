"""The model ``auto``: rules choose which model answers a request.

Read in this order: ``chooser`` (from a body to the models that are asked, the cheapest one first), ``chains`` (what a
route is told), ``routes`` (of the admin API).
"""
