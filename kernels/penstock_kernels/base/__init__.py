"""What all other rooms share: checks of arguments, types of arguments and results, and what is asked of a device."""
