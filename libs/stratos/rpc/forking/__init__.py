"""Services as forks of one process that has imported what they need: a start without the seconds of its imports.

Read in this order: ``wire`` (what is asked and told), ``server`` (the process that forks), ``ending`` (how its forks
end), ``client`` (the supervisor's side).
"""
