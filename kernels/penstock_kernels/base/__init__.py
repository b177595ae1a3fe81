"""Code that all other rooms share: checks of arguments, types of arguments and results, queries of a device."""
