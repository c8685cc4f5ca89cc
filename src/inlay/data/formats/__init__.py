"""One file per format: each turns an opened file into a Source, or says where it is wrong."""
