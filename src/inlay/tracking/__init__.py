"""What a training tells while it runs: progress on the screen, logs, trackers."""
