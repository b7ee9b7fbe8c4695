"""The pages of the dashboards, each as a table of panels.

Read in this order: ``fleet``, ``requests``, ``workers``, ``money``, ``pages`` (all of them).
"""
