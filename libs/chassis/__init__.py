"""What five processes do identically: settings, clock, logs, telemetry, start and drain."""
