"""Attention by other libraries, over the same paged cache: chosen by name in `backends`, imported only then."""
