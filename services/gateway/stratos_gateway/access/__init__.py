"""Who may ask, and how much at once: API keys, open requests per tenant."""
