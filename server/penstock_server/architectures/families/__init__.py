"""A family's row and name map each: data, and where a family is several in one, the choice between them."""
