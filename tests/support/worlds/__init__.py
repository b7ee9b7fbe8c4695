"""Parts of the platform put together for a test, and what drives them."""
