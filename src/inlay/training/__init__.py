"""Training: any number of runs side by side in one loop; a single run is one of one."""
