"""Checks every load and store of kernels in Triton's interpreter: for bounds, and for races between programs.

A GPU reports neither: it reads and writes whatever lies there, and its programs run in any order. Here every address
must lie inside the tensor that its pointer comes from, the programs of a launch run in shuffled order, and no two of
them may touch one word unless both only read it. So the order cannot change a result. What breaks a rule is a
`MemoryFault`, which names kernel, program and element.

`arguments` has the tensors of a launch, `footprints` who touched which word, `launch` applies the rules, `checker` has
what outlives a launch, and `hooks` is the one place that knows the interpreter.
"""
