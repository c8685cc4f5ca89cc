"""Methods and a task as someone outside the package would write them, one file each. docs/extending.md shows them."""
