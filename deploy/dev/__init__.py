"""Everything on one machine: launcher, demo and its scripted model."""
