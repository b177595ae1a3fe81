//! Traces as a collector gets them: whose child is what, what is said of it and what is not, and what becomes of serving
//! when the collector is away.

mod collector;
mod logs;
mod spans;
mod trouble;
