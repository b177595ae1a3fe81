//! Files for browsers: the page and the documentation of the API.

pub mod docs;
pub mod ui;
