"""One file per format: each turns an opened file into a Layout, or says where it is wrong."""
