"""What lies in the data directory of ``stratos up``: credentials, facts about the running platform."""
