//! A budget of models that are awake: of several models in one server, some sleep while others are used. The proxy sees all
//! requests, so it decides.
//!
//! A request goes to the server of its model in any case, and waits there, in the queue and within its limits, until the model
//! is awake: that server checks it, and says over its admin socket that it is needed. Then a model that has nothing to do is
//! sent to sleep, and this one is woken.
//!
//! - `decision`: pure, which model sleeps or wakes next
//! - `gigabytes`: a flag's number of GB
//! - `gate`: holds requests back while a model falls asleep, so that none is interrupted by it
//! - `control`: calls of a model's admin socket
//! - `keeper`, `kept`: the task that looks at the models, and carries out what is decided; what it knows of each

mod control;
mod decision;
#[cfg(test)]
mod decision_tests;
mod gate;
mod gigabytes;
mod keeper;
mod kept;
mod options;

pub use gate::Gate;
pub use gigabytes::Gigabytes;
pub use keeper::Keeper;
pub use options::{BudgetOptions, Rules};
