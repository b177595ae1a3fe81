//! The HTML report: one self-contained page of tables and plots, without scripts and without anything to fetch.

mod page;
mod plot;

pub use page::render;
