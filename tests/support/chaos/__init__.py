"""Tenants that pay and stores that go away, for the chaos suite."""
