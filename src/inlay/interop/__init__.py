"""Other libraries' files, the hub, and graphs for other runtimes: adapters in and out."""
