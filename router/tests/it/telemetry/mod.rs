//! Traces as a collector receives them: parents of spans, attributes, what must not be in them, and serving without a
//! collector.

mod collector;
mod logs;
mod spans;
mod trouble;
