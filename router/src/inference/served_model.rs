//! The name of the served model, and which names clients may use for it.

use crate::base::error::Error;

/// The served model, as clients name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// The name of `--model-id`, which responses carry.
    pub id: String,
}

impl ServedModel {
    /// Accepts no name, the served name, its last part, and what clients send if they know no name ("tgi", "dummy", a
    /// URL).
    pub fn check(&self, name: Option<&str>) -> Result<(), Error> {
        let Some(name) = name else { return Ok(()) };
        let served = self.id.as_str();
        let is_placeholder = ["", "tgi", "dummy"].contains(&name) || name.contains("://");
        let last_part = served.trim_end_matches('/').rsplit('/').next().unwrap_or(served);
        if is_placeholder || name == served || name == last_part {
            return Ok(());
        }
        Err(Error::UnknownModel { name: name.chars().take(200).collect(), served: served.to_owned() })
    }
}
