"""All five services as five processes."""
