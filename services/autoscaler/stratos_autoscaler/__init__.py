"""The autoscaler service: watches queue and workers, keeps the pools between their bounds."""
