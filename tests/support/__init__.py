"""What several tests need: worlds of services, engines, drivers, peers."""
