"""Money and priorities: two gateways, prices, an external endpoint, a batch slot of one."""
