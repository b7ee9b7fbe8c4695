"""The router service: placement, queues, worker liveness. Not in the token path, and never imports torch."""
