"""Two of each: what is billed, traced and kept while processes are killed and stopped."""
