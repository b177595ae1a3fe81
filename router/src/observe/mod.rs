//! What an operator sees: log levels, metrics, traces, and the interface through which the engine loop reports its steps.

pub mod log_level;
pub mod metrics;
pub mod observer;
pub mod telemetry;
