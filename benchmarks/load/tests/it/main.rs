//! The whole command against servers that are scripted, as one binary.

mod capacity;
mod end_to_end;
mod support;
