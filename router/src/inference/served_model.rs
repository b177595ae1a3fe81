//! The model as clients know it.

use crate::base::error::Error;

/// The names of the served model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedModel {
    /// The name that answers carry.
    pub id: String,
}

impl ServedModel {
    /// Accepts the served name, its last part, and what clients send when they know none ("tgi", "dummy", a URL).
    pub fn check(&self, name: Option<&str>) -> Result<(), Error> {
        let Some(name) = name else { return Ok(()) };
        let served = self.id.as_str();
        let stands_for_any = ["", "tgi", "dummy"].contains(&name) || name.contains("://");
        let last_part = served.trim_end_matches('/').rsplit('/').next().unwrap_or(served);
        if stands_for_any || name == served || name == last_part {
            return Ok(());
        }
        Err(Error::UnknownModel { name: name.chars().take(200).collect(), served: served.to_owned() })
    }
}
