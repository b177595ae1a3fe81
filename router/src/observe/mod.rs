//! What an operator sees: metrics, traces, and the interface through which the engine loop reports its steps.

pub mod metrics;
pub mod observer;
pub mod telemetry;
