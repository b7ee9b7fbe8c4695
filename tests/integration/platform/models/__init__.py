"""Models of two gateways and two routers: added, moved by hand and by roll-outs, and removed."""
