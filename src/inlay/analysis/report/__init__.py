"""`inlay report`: one adapter, or two side by side, as one HTML file that needs nothing else."""
