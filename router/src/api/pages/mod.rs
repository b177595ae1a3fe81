//! Pages for browsers: the user interface and the documentation of the API.

pub mod docs;
pub mod ui;
