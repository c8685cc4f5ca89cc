"""The host: one base, its bank and its heads; and `attach`, for people with their own loop."""
